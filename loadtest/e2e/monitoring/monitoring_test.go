package monitoring

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// promtool is Prometheus' own checker, "" where there is no Debian to take it from.
func promtool(t *testing.T) string {
	t.Helper()
	path := filepath.Join(process.Root(t), ".cache/e2e/prometheus-deb/usr/bin/promtool")
	if _, err := os.Stat(path); err != nil {
		t.Skip("no Prometheus here: it comes from Debian")
	}
	return path
}

// Each alert fires on what it is for and not before, as deploy/alerts says.
func TestAlerts_FireOnWhatTheyAreFor(t *testing.T) {
	cmd := exec.Command(promtool(t), "test", "rules", "deploy/alerts/tandem.test.yaml")
	cmd.Dir = process.Root(t)
	if printed, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, printed)
	}
}

// Each alert has its tests, a paragraph in the runbook, and asks for metrics that there are.
func TestAlerts_HaveTestsAndARunbook(t *testing.T) {
	rules, tests, runbook := read(t, "deploy/alerts/tandem.yaml"), read(t, "deploy/alerts/tandem.test.yaml"), read(t, "docs/runbook.md")
	alerts := regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(rules, -1)
	for _, alert := range alerts {
		name := alert[1]
		if !strings.Contains(tests, "alertname: "+name+"\n") || !strings.Contains(tests, "alertname: "+name+"}") {
			t.Errorf("%s is not tested to be quiet and to fire", name)
		}
		if !strings.Contains(runbook, "\n## "+name+"\n") || !strings.Contains(rules, "runbook.md#"+strings.ToLower(name)+"\n") {
			t.Errorf("%s has no paragraph in docs/runbook.md", name)
		}
	}
	if len(alerts) < 5 {
		t.Errorf("only %d alerts are found: the rules are not read", len(alerts))
	}
	metrics, _, _ := strings.Cut(read(t, "docs/metrics.md"), "## Old names")
	for _, name := range regexp.MustCompile(`\btandem_[a-z_]+`).FindAllString(rules, -1) {
		bare := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
		if !strings.Contains(metrics, "| `"+bare+"` |") {
			t.Errorf("there is no metric %s", name)
		}
	}
}

// Every query of a dashboard and every recording rule returns data from a Prometheus that scrapes a
// gateway with two pairs, one tenant that is served and one beyond its limit; no alert fires, and
// histograms point to traces.
func TestDashboards_EveryQueryReturnsData(t *testing.T) {
	checker := promtool(t)
	g := startGateway(t)
	p := startPrometheus(t, g.admin, "exemplar-storage")
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	defer load.Wait()
	defer stop()
	load.Go(func() { g.load(ctx) })

	asked := queries(t)
	deadline := time.Now().Add(3 * time.Minute)
	for name, query := range asked {
		for !p.has(t, query) {
			if time.Now().After(deadline) {
				t.Errorf("%s: no data for %s", name, query)
				break
			}
			time.Sleep(500 * time.Millisecond) // between two scrapes
		}
	}
	t.Logf("%d queries", len(asked))
	p.rulesAreQuiet(t)
	if exemplars := p.ask(t, "query_exemplars", url.Values{"query": {"tandem_ttft_seconds_bucket"}, "start": {fmt.Sprint(time.Now().Add(-time.Hour).Unix())}, "end": {fmt.Sprint(time.Now().Unix())}}); !strings.Contains(exemplars, "trace_id") {
		t.Errorf("the times to the first token name no trace: %.300s", exemplars)
	}
	check := exec.Command(checker, "check", "metrics")
	check.Stdin = strings.NewReader(get(t, "http://"+g.admin+"/metrics"))
	if printed, err := check.CombinedOutput(); err != nil || len(printed) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, printed)
	}
}

// read is a file of the repository.
func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(process.Root(t), path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// variables are what Grafana fills in, where the gateway's job is chosen, and of the rest all.
var variables = strings.NewReplacer("$__rate_interval", "30s", "$__range", "30s", "$namespace", ".*", "$job", "tandem", "$model", ".*")

// queries are those of all dashboards by dashboard, panel and letter, and the names of all recording
// rules, with the variables that Grafana fills in.
func queries(t *testing.T) map[string]string {
	t.Helper()
	found := make(map[string]string)
	files, _ := filepath.Glob(filepath.Join(process.Root(t), "deploy/dashboards/*.json")) // the pattern is valid
	for _, file := range files {
		var dashboard struct {
			Panels []struct {
				Title   string
				Targets []struct{ RefID, Expr string }
			}
		}
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, &dashboard)
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, panel := range dashboard.Panels {
			for _, target := range panel.Targets {
				where := filepath.Base(file) + " " + panel.Title + " " + target.RefID
				if metrics := strings.Count(target.Expr, "tandem_"); metrics != strings.Count(target.Expr, `{namespace=~"$namespace",job=~"$job"`) {
					t.Errorf("%s is not of the chosen installation: %s", where, target.Expr)
				}
				found[where] = variables.Replace(target.Expr)
			}
		}
	}
	for _, rule := range regexp.MustCompile(`record: (\S+)`).FindAllStringSubmatch(read(t, "deploy/alerts/tandem.yaml"), -1) {
		found["rule "+rule[1]] = rule[1]
	}
	if len(files) < 2 || len(found) < 20 {
		t.Fatalf("only %d dashboards with %d queries are found", len(files), len(found))
	}
	return found
}

// gateway is a gateway in front of two simulated prefill and two decode servers, which load the
// adapter sql on demand.
type gateway struct{ address, admin string }

// startGateway serves the tenants ada, and bob, who may ask once a minute. Traces go nowhere.
func startGateway(t *testing.T) gateway {
	t.Helper()
	sink := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	t.Cleanup(sink.Close)
	g := gateway{address: process.FreeAddress(t), admin: process.FreeAddress(t)}
	config := fmt.Sprintf("listen: %q\nadmin: %q\n", g.address, g.admin)
	for _, role := range []string{"prefill", "decode"} {
		config += role + ":\n"
		for range 2 {
			address, events, replay := process.FreeAddress(t), process.FreeAddress(t), process.FreeAddress(t)
			process.Start(t, nil, "engine", "bin/tandem-lab", "engine", "--listen", address, "--role", role, "--model", "demo", "--time-scale", "0.1",
				"--events", "tcp://*:"+process.Port(t, events), "--replay", "tcp://*:"+process.Port(t, replay))
			config += fmt.Sprintf("  - {url: \"http://%s\", events: \"tcp://%s\", replay: \"tcp://%s\"}\n", address, events, replay)
		}
	}
	keys := "secret: " + strings.Repeat("6c1f", 16) + "\nkeys:\n"
	for tenant, limit := range map[string]string{"ada": "", "bob": "    requests-per-minute: 1\n"} {
		keys += fmt.Sprintf("  - sha256: %x\n    tenant: %s\n%s", sha256.Sum256([]byte(tenant+"'s key")), tenant, limit)
	}
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "tandem.yaml"), []byte(config), 0o600), os.WriteFile(filepath.Join(dir, "keys.yaml"), []byte(keys), 0o600)); err != nil {
		t.Fatal(err)
	}
	p := process.Start(t, nil, "gateway", "bin/tandem", "serve", "-c", filepath.Join(dir, "tandem.yaml"), "--keys-file", filepath.Join(dir, "keys.yaml"),
		"--adapter", "sql=/adapters/sql", "--native-histograms", "--ttft-slo", "10s", "--itl-slo", "2s", "--scale-interval", "1s", "--pairs-first", "--otlp-endpoint", sink.URL)
	process.WaitFor(t, p, "the gateway to be ready", process.ReadyWithin, process.Answers("http://"+g.admin+"/readyz"))
	return g
}

// load asks until the context ends, some of it again and again, and some of the adapter.
func (g gateway) load(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		tenant, model := "ada", "demo"
		if i%10 == 0 {
			tenant = "bob"
		}
		if i%5 == 1 {
			model = "sql"
		}
		body := fmt.Sprintf(`{"model":%q,"stream":true,"max_tokens":8,"prompt":"%d %s"}`, model, i%4, strings.Repeat("of the river and the bridge ", 60))
		req, err := http.NewRequestWithContext(ctx, "POST", "http://"+g.address+"/v1/completions", bytes.NewReader([]byte(body)))
		if err != nil {
			return
		}
		req.Header.Set("Authorization", "Bearer "+tenant+"'s key")
		req.Header.Set("Content-Type", "application/json")
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond): // a little load
		}
	}
}

// prometheus is where a Prometheus answers.
type prometheus string

// startPrometheus starts one that scrapes an admin port every second, with the rules of deploy/alerts and
// a feature that is off by default.
func startPrometheus(t *testing.T, admin, feature string) prometheus {
	t.Helper()
	dir, address := t.TempDir(), process.FreeAddress(t)
	config := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%q]\nscrape_configs:\n- job_name: tandem\n  static_configs: [{targets: [%q]}]\n",
		filepath.Join(process.Root(t), "deploy/alerts/tandem.yaml"), admin)
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	p := process.Start(t, nil, "prometheus", ".cache/e2e/prometheus", "--config.file", filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path", filepath.Join(dir, "data"),
		"--web.listen-address", address, "--enable-feature", feature, "--log.level", "error")
	process.WaitFor(t, p, "Prometheus", process.ReadyWithin, process.Answers("http://"+address+"/-/ready"))
	return prometheus("http://" + address + "/api/v1/")
}

func (p prometheus) ask(t *testing.T, what string, query url.Values) string {
	t.Helper()
	return get(t, string(p)+what+"?"+query.Encode())
}

func get(t *testing.T, address string) string {
	t.Helper()
	resp, err := (&http.Client{Timeout: time.Minute}).Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %v %s", address, resp.StatusCode, err, body)
	}
	return string(body)
}

// has reports whether a query returns any number.
func (p prometheus) has(t *testing.T, query string) bool {
	t.Helper()
	return len(p.numbers(t, query)) > 0
}

// numbers are those that a query returns.
func (p prometheus) numbers(t *testing.T, query string) (numbers []float64) {
	t.Helper()
	var answer struct {
		Data struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.Unmarshal([]byte(p.ask(t, "query", url.Values{"query": {query}})), &answer); err != nil {
		t.Fatal(err)
	}
	for _, r := range answer.Data.Result {
		text, _ := r.Value[1].(string)
		if v, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(v) {
			numbers = append(numbers, v)
		}
	}
	return numbers
}

// rulesAreQuiet fails where a rule cannot be evaluated, or an alert fires though nothing is wrong.
func (p prometheus) rulesAreQuiet(t *testing.T) {
	t.Helper()
	var answer struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, State, LastError string }
			}
		}
	}
	if err := json.Unmarshal([]byte(p.ask(t, "rules", nil)), &answer); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, group := range answer.Data.Groups {
		for _, r := range group.Rules {
			seen++
			if r.Health != "ok" || r.State == "firing" {
				t.Errorf("%s is %s %s: %s", r.Name, r.Health, r.State, r.LastError)
			}
		}
	}
	if seen < 20 {
		t.Errorf("%d rules are evaluated", seen)
	}
}
