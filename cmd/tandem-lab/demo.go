package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/cmd/internal/serving"
	"github.com/tandem-gateway/tandem/pools/discovery"
)

const demoModel = "tandem-demo"

func demoCommand() *cobra.Command {
	d := demo{listen: "127.0.0.1:8080", admin: "127.0.0.1:8081"}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Start simulated engines and the gateway, and show that it works",
		Long: `Start two simulated prefill and two simulated decode servers as processes of
their own and a gateway in front of them, send one streamed chat completion
through it, and stay up until Ctrl-C. The engines compute no language model, but
they keep and hand over a KV cache as real ones do: an answer comes out right
only if the hand-off was.

With --with it also starts real servers of other projects that are on the PATH
(redis-server, prometheus, jaeger of version 2), each at a free port: the gateway
uses the Redis, Prometheus scrapes gateway and engines with the rules of
deploy/alerts, Jaeger receives a trace of each request. They end with the demo, and
keep nothing.`,
		Example: "  tandem-lab demo\n  tandem-lab demo --with redis,prometheus,jaeger",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d.out = cmd.OutOrStdout()
			var err error
			if d.engine, err = os.Executable(); err != nil {
				return fmt.Errorf("find the own program: %w", err)
			}
			return d.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&d.listen, "listen", d.listen, "`address` for OpenAI clients")
	cmd.Flags().StringVar(&d.admin, "admin", d.admin, "`address` for metrics, readiness and decisions")
	cmd.Flags().StringVar(&d.otlp, "otlp-endpoint", "", "`URL` of an OTLP/HTTP collector for traces")
	cmd.Flags().StringSliceVar(&d.with, "with", nil, "`servers` to start beside it: "+strings.Join(serviceNames(), ", "))
	cmd.Flags().BoolVar(&d.trace, "trace", false, "print the trace of a request whose servers fail")
	cmd.Flags().BoolVar(&d.once, "once", false, "end after the first answer")
	cmd.MarkFlagsMutuallyExclusive("trace", "otlp-endpoint")
	return cmd
}

// demo is a small cluster on one machine.
type demo struct {
	listen, admin, otlp string
	with                []string // names of services
	engine              string   // the program whose command engine is started
	once                bool
	trace               bool           // print one
	collector           *spanCollector // nil where none is printed
	out                 io.Writer
}

func (d *demo) print(format string, args ...any) { _, _ = fmt.Fprintf(d.out, format+"\n", args...) }

func (d *demo) run(ctx context.Context) (err error) {
	if d.trace {
		if d.collector, err = startSpanCollector(); err != nil {
			return err
		}
		defer d.collector.close()
		d.otlp = d.collector.url
	}
	services, err := findServices(d.with, d.otlp)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, services.stop()) }()
	engines, err := startEngines(d.engine, d.out)
	defer func() { err = errors.Join(err, engines.stop()) }()
	if err != nil {
		return err
	}
	var servers []discovery.Entry
	for _, e := range engines {
		servers = append(servers, discovery.Entry{URL: "http://" + e.addr, Role: e.role.String(), Rack: e.rack, Events: e.events, Replay: e.replay})
	}
	settings := map[string]string{"listen": d.listen, "admin": d.admin, "otlp-endpoint": d.otlp, "expose-pair": "true"}
	if err := services.startUsed(ctx, settings); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	n, err := serving.New(ctx, settings, servers, log)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w: say others with --listen and --admin, such as make run ARGS='--listen 127.0.0.1:8090 --admin 127.0.0.1:8091'", err)
	}
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	stopped := make(chan error, 1)
	go func() { stopped <- n.Run(running) }()
	d.print("gateway   http://%s   admin http://%s", n.ClientAddr(), n.AdminAddr())

	err = services.startPrometheus(ctx, n.AdminAddr().String(), engines)
	if err == nil {
		err = d.show(ctx, n, len(engines), services)
	}
	if err != nil {
		stop()
		return errors.Join(err, <-stopped)
	}
	if d.once {
		stop()
		return <-stopped
	}
	d.print("\nCtrl-C stops everything.")
	err = <-stopped
	d.print("\ndrained and stopped")
	return err
}

// showOne sends one streamed chat completion, and prints the answer and the servers that gave it.
func (d *demo) showOne(ctx context.Context, base, what, question string, outputTokens int) (reply, error) {
	answer, err := ask(ctx, base, demoModel, question, outputTokens)
	if err != nil {
		return reply{}, fmt.Errorf("the demo's request with %s: %w", what, err)
	}
	prefill := answer.header.Get("X-Tandem-Prefill")
	if prefill == "" {
		prefill = "none: decode computes the prompt"
	}
	d.print("\nasked     %s: one streamed chat completion, %d prompt tokens (%d characters)", what, answer.promptTokens, len(question))
	d.print("answered  %q", answer.text)
	d.print("prefill   %s\ndecode    %s", prefill, answer.header.Get("X-Tandem-Decode"))
	d.print("timing    first token after %s, all %d after %s", answer.ttft.Round(time.Millisecond), answer.outputTokens, answer.took.Round(time.Millisecond))
	return answer, nil
}

// demoOutputTokens are asked for by each request.
const demoOutputTokens = 80

// readyTime is how long the engines may take to start.
const readyTime = time.Minute

// show waits for the engines, sends a short and a long prompt, and prints what came of them.
func (d *demo) show(ctx context.Context, n *serving.Node, engines int, services *services) error {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	if err := n.AwaitServers(ctx, engines); err != nil {
		return err
	}
	base := "http://" + n.ClientAddr().String()
	if from, pays := n.PairPaysFrom(demoModel, demoOutputTokens); pays {
		d.print("\nA prompt of fewer than %d tokens runs on decode alone here while servers are idle: a second\nleg and the transfer of its KV would cost more than the time that decode loses by computing it.", from)
	}
	if _, err := d.showOne(ctx, base, "a short prompt", "What is a tandem?", demoOutputTokens); err != nil {
		return err
	}
	story := "Here is a story. " + strings.Repeat("Two riders on one bicycle must pedal together or not at all. ", 180) + "What is it about?"
	answer, err := d.showOne(ctx, base, "a long prompt", story, demoOutputTokens)
	if err != nil {
		return err
	}
	if err := services.show(ctx, d.print, answer.header.Get("X-Request-Id")); err != nil {
		return err
	}
	if d.trace {
		if err := d.showTrace(ctx, base, story, answer); err != nil {
			return err
		}
	}
	d.print("\nwhy this pair:\n  bin/tandem explain %s --admin http://%s", answer.header.Get("X-Request-Id"), n.AdminAddr())
	d.print("watch it in a browser:\n  http://%s/ui/", n.AdminAddr())
	d.print("try it yourself:\n  curl -N %s/v1/chat/completions -H 'Content-Type: application/json' \\\n    -d '{\"model\":\"%s\",\"stream\":true,\"max_tokens\":40,\"messages\":[{\"role\":\"user\",\"content\":\"Tell me of two riders on one bicycle, where they went, what they saw, and how they came home.\"}]}'", base, demoModel)
	d.print("put load on it:\n  bin/tandem-lab load --url %s --rps 20 --duration 30s", base)
	d.print("or conversations, and see what their caches save:\n  bin/tandem-lab load --url %s --rps 10 --duration 40s --turns 6 --think-time 1s --shared-prefix-tokens 1000 --prompt-tokens 200 --output-tokens 40", base)
	return nil
}
