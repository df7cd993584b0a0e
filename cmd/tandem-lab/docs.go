package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/autoscale"
	"github.com/tandem-gateway/tandem/autoscale/demand"
	"github.com/tandem-gateway/tandem/autoscale/keda"
	"github.com/tandem-gateway/tandem/cmd/internal/serving"
	"github.com/tandem-gateway/tandem/cmd/internal/version"
	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/kvstate/ghost"
	"github.com/tandem-gateway/tandem/kvstate/replicate"
	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/kvstate/zmqsub"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/histogram"
	"github.com/tandem-gateway/tandem/pd/leader"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pd/retry"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/discovery/kube"
	"github.com/tandem-gateway/tandem/pools/replicas"
)

func docsCommand() *cobra.Command {
	var dir string
	var check bool
	cmd := &cobra.Command{
		Use:    "docs",
		Short:  "Write the documents that are generated from the code",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return docs(dir, check, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "docs", "`directory` of the documents")
	cmd.Flags().BoolVar(&check, "check", false, "write nothing; fail if a document is not current")
	return cmd
}

func docs(dir string, check bool, out io.Writer) error {
	page, err := os.ReadFile(filepath.Join(dir, "pair.md"))
	if err != nil {
		return err
	}
	picture, err := pairPicture(string(page))
	if err != nil {
		return err
	}
	for name, content := range map[string]string{
		"configuration.md": configurationDoc(),
		"metrics.md":       metricsDoc(),
		"pair.svg":         picture,
	} {
		path := filepath.Join(dir, name)
		if !check {
			if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
				return err
			}
			continue
		}
		present, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !bytes.Equal(present, []byte(content)) {
			return fmt.Errorf("%s is not current; run \"bin/tandem-lab docs\"", path)
		}
		_, _ = fmt.Fprintln(out, path, "is current")
	}
	return nil
}

func configurationDoc() string {
	var b strings.Builder
	b.WriteString(`# Configuration

For operators: every setting, by what it is about. Those most used are on one screen in
[operating.md](operating.md#the-settings-most-used).

- Every setting is a flag of "tandem serve" and, under the same name, a key of the YAML
  file given with -c. Flags win over the file. An unknown key is an error that names its
  line.
- The servers are read again on SIGHUP and when the file changes; other settings need a
  restart, which the log then says. Files that settings name are read again where the
  setting says so.
- "tandem check" with the same flags or file says what is wrong with them.

This page is generated: bin/tandem-lab docs.
`)
	for _, group := range serving.Settings() {
		fmt.Fprintf(&b, "\n## %s\n\n| setting | default | meaning |\n|---|---|---|\n", group.Title)
		group.Flags.VisitAll(func(f *pflag.Flag) {
			kind, usage := pflag.UnquoteUsage(f)
			value := f.DefValue
			if value == "" {
				value = " "
			}
			fmt.Fprintf(&b, "| `%s` %s | `%s` | %s |\n", f.Name, inCell(kind), inCell(value), inCell(usage))
		})
	}
	b.WriteString(`
## Servers in the file

Each entry of prefill, decode and both is a URL, or an object:

| key | meaning |
|---|---|
| url | scheme, host and port of the engine; or a name for any number of them: dns+http://name:port (A, AAAA), srv+http://name (SRV) |
| rank | data-parallel rank behind the address, where several share it |
| host, rack, zone | topology labels; servers that share one are assumed to be linked as fast as it says |
| connector | how decode obtains the KV: nixl, or another name in the table of [engines](engines.md); aggregated takes requests whole, and is never half of a pair; as the engine reports if not set, nixl where it does not |
| kv-address | host:port where other engines reach this one's KV, such as SGLang's bootstrap server; of a nixl server the P2P tier of an OffloadingConnector beside it; the URL's host and the port that the engine tells, or the connector's usual one, otherwise |
| native | true: it speaks SGLang's own API, and /generate is open to clients, with the fields that are known to be harmless |
| group | a name that servers share which step in lockstep (wide expert parallelism): they fail and drain together, and a step takes as long as on the slowest |
| weights | version of the weights; servers of different ones are never paired |
| store | name of a KV store outside the engines (Mooncake's, LMCache's, a file system) that it puts blocks into: what is there counts for all servers of that name ([locality](locality.md#shared-stores)); those of connector store share one without a name |
| layout | whatever else the KV depends on (engine version, block size, dtype, parallel layout); likewise |
| variant | kind of hardware, such as h100, where scaling must distinguish it: see [autoscaling](autoscaling.md) |
| elastic | true: the engine grows in place (elastic expert parallelism), so that a size is wanted of it and no count |
| gpus | any text: servers with the same share GPUs, and one of them is awake (vLLM's sleep mode) |
| metrics | URL of the engine's Prometheus metrics, where they are not at its own address: http://10.0.0.1:8002/metrics of Triton |
| orca | host:port of the engine's OpenRcaService (gRPC), where it has one: its load then comes as a stream |
| events | ZMQ address of the engine's KV events, such as tcp://10.0.0.1:5557 |
| replay | ZMQ address that replays missed events |
| events-bind | true: the engine is in connect mode, and events is where the gateway listens for it |
| events-ranks | data-parallel ranks among which the engine itself chooses; rank r publishes on both ports + r |
| drain | true: takes no new request, what is in flight runs out |

`)
	b.WriteString("```yaml\nlisten: \":8080\"\nexpose-pair: true\nprefill:\n  - url: http://10.0.0.1:8000\n    rack: r1\n  - url: http://10.0.0.2:8000\n    rack: r2\ndecode:\n  - url: http://10.0.0.3:8000\n    rack: r1\n  - http://10.0.0.4:8000\n```\n")
	return b.String()
}

// described reads what a metric's description prints; it has no getters.
var described = regexp.MustCompile(`fqName: "([^"]*)", help: "((?:[^"\\]|\\.)*)".*variableLabels: \{([^}]*)\}`)

func metricsDoc() string {
	fleet := pools.NewFleet(pools.Default(), slog.New(slog.DiscardHandler))
	queue := queue.New(queue.Default())
	var recorded recorder
	recorded.MustRegister(version.Collector(), version.TargetInfo(""), fleet.Collector(), serving.NewFileReloads(), replicas.NewExchange(fleet, nil, "", "", nil), &kube.Cluster{}, keda.NewPublishedTargets(0),
		autoscale.NewScaler(autoscale.DefaultConfig(), fleet, demand.NewMeter(time.Now), nil, nil))
	pd.NewMetrics(&recorded, histogram.Config{}, queue, retry.NewQuarantine())
	recorded.MustRegister(pd.LostShares(new(ghost.Memories)))
	leader.NewMetrics(&recorded)
	gateway.NewMetrics(&recorded, histogram.Config{})
	tokens.NewMetrics(&recorded)
	index, err := kvstate.New(kvstate.Default())
	if err != nil {
		panic(err) // the defaults are valid, or no test passes
	}
	hub, err := zmqsub.NewHub(zmqsub.Default(), slog.New(slog.DiscardHandler))
	if err != nil {
		panic(err)
	}
	defer func() { _ = hub.Close() }()
	recorded.MustRegister(index.Collector(), hub.Collector(), replicate.New(index, nil, "", "", nil))

	var rows []string
	for _, d := range recorded.descs {
		if m := described.FindStringSubmatch(d.String()); m != nil {
			rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |", m[1], strings.ReplaceAll(m[3], ",", ", "), inCell(m[2])))
		}
	}
	slices.Sort(rows)
	return `# Metrics

For operators: every metric, by its name. Which to look at first, by question:
[operating.md](operating.md#metrics); what to do when an alert fires: [runbook.md](runbook.md).

Served as Prometheus text on the admin port at /metrics, beside Go's own. Times are in
seconds. Labels are bounded by the configuration, and by the models and servers that there
are: the series of a server end with it, those of a model, such as an adapter that engines
loaded, a day after no server has it any more, or when 500 others have gone since.

This page is generated: bin/tandem-lab docs.

| metric | labels | meaning |
|---|---|---|
` +
		strings.Join(rows, "\n") + "\n" + renamedMetrics
}

// inCell returns a text for a cell of a table, which a bar would end.
func inCell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// recorder is a registry that only notes what is registered.
type recorder struct{ descs []*prometheus.Desc }

func (r *recorder) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		ch := make(chan *prometheus.Desc)
		go func() {
			defer close(ch)
			c.Describe(ch)
		}()
		for d := range ch {
			r.descs = append(r.descs, d)
		}
	}
}

func (r *recorder) Register(c prometheus.Collector) error {
	r.MustRegister(c)
	return nil
}

func (r *recorder) Unregister(prometheus.Collector) bool { return false }

var _ prometheus.Registerer = (*recorder)(nil)
