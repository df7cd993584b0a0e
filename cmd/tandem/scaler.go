package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/autoscale/keda"
	"github.com/tandem-gateway/tandem/cmd/internal/porttls"
	"github.com/tandem-gateway/tandem/cmd/internal/serving"
	"github.com/tandem-gateway/tandem/gateway"
)

// idleTime is how long a connection to the pages may stay open between two requests.
const idleTime = 2 * time.Minute

func scalerCommand() *cobra.Command {
	var listen, admin string
	var adminTLS porttls.Config
	var maxAge time.Duration
	cmd := &cobra.Command{
		Use:   "scaler",
		Short: "Publish wanted replicas by hand, to try ScaledObjects before a gateway decides",
		Long: `Serve what KEDA asks a gateway for, without a gateway: gRPC for the triggers external
and external-push, JSON for metrics-api, gauges for prometheus. What is wanted comes
from standard input, one line a pool, whose ROLE is prefill or decode:

    MODEL ROLE REPLICAS [HELD]     all pools keep their last targets, for --max-age
    MODEL ROLE unknown             nothing is known of the pool any more`,
		Example: `  (echo llama decode 10; sleep 60; echo llama decode 11; sleep 600) | tandem scaler`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := adminTLS.Validate(); err != nil {
				return err
			}
			return runScaler(cmd.Context(), scalerPorts{listen, admin, adminTLS}, maxAge, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:9090", "`address` for gRPC")
	cmd.Flags().StringVar(&admin, "admin", "127.0.0.1:8081", "`address` for JSON and metrics")
	adminTLS.Bind(cmd.Flags(), "admin", "those who may ask, who then need one")
	cmd.Flags().DurationVar(&maxAge, "max-age", time.Hour, "time that a line counts")
	return cmd
}

// scalerPorts are the addresses for gRPC, and for JSON and metrics.
type scalerPorts struct {
	grpc, admin string
	adminTLS    porttls.Config
}

// listen binds them.
func (p *scalerPorts) listen() (calls, pages net.Listener, err error) {
	conf, err := p.adminTLS.Server(tls.VerifyClientCertIfGiven, slog.New(slog.NewJSONHandler(os.Stderr, nil)))
	if err != nil {
		return nil, nil, err
	}
	if calls, err = net.Listen("tcp", p.grpc); err != nil {
		return nil, nil, err
	}
	if pages, err = net.Listen("tcp", p.admin); err != nil {
		return nil, nil, errors.Join(err, calls.Close())
	}
	if conf != nil {
		pages = tls.NewListener(pages, conf)
	}
	return calls, pages, nil
}

// runScaler serves targets until the context ends.
func runScaler(ctx context.Context, ports scalerPorts, maxAge time.Duration, in io.Reader, out io.Writer) error {
	targets := keda.NewPublishedTargets(maxAge)
	calls, pages, err := ports.listen()
	if err != nil {
		return err
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(targets)
	mux := http.NewServeMux()
	mux.Handle(serving.ScalerRoute, targets.Handler())
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	web := &http.Server{Handler: gateway.RequireToken(func() string { return "" }, ports.adminTLS.ClientCA != "", nil, mux), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: idleTime}
	server := keda.NewServer(targets)

	failed := make(chan error, 3)
	go func() { failed <- server.Serve(calls) }()
	go func() {
		if err := web.Serve(pages); !errors.Is(err, http.ErrServerClosed) {
			failed <- err
		}
	}()
	go func() { failed <- readTargets(in, targets) }() // ends with its input, or with the process
	_, _ = fmt.Fprintf(out, "gRPC on %s, JSON and metrics on %s\n", calls.Addr(), pages.Addr())
	for {
		select {
		case <-ctx.Done():
			server.Stop()
			return web.Close()
		case err := <-failed:
			if err != nil {
				server.Stop()
				return errors.Join(err, web.Close())
			}
			// The input has ended; the last targets stay.
		}
	}
}

// readTargets publishes line by line.
func readTargets(in io.Reader, targets *keda.PublishedTargets) error {
	wanted := make(map[keda.Pool]keda.Target)
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 {
			continue
		}
		if err := readTarget(fields, wanted); err != nil {
			return fmt.Errorf("%q: %w", lines.Text(), err)
		}
		targets.Publish(maps.Clone(wanted))
	}
	return lines.Err()
}

func readTarget(fields []string, wanted map[keda.Pool]keda.Target) error {
	if len(fields) != 3 && len(fields) != 4 {
		return errors.New("want MODEL ROLE REPLICAS [HELD]")
	}
	pool := keda.Pool{Model: fields[0], Role: fields[1]}
	if err := pool.Validate(); err != nil {
		return err
	}
	if fields[2] == "unknown" {
		delete(wanted, pool)
		return nil
	}
	numbers := [2]int{}
	for i, text := range fields[2:] {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return fmt.Errorf("%s is not a number of replicas or requests", text)
		}
		numbers[i] = n
	}
	wanted[pool] = keda.Target{Replicas: numbers[0], WaitingForCapacity: numbers[1], Reason: "by-hand", At: time.Now()}
	return nil
}
