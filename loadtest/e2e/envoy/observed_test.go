package envoy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// Whatever Envoy shows of answers, picked requests are counted as served, by path="picker", their
// places are free again, and their decisions can be explained.
func TestObserved_HoweverAnswersAreShown(t *testing.T) {
	for _, answers := range []string{"FULL_DUPLEX_STREAMED", "STREAMED", "NONE"} {
		t.Run(answers, func(t *testing.T) {
			f := startPairs(t)
			p := startPicker(t, f)
			s := standalone(t, p)
			s.Answers = answers
			gateway := startProxy(t, s).url
			const requests = 6
			var ids [requests]string
			for n := range requests {
				body := chat(n, words(900), []string{"", streamed}[n%2])
				a := send(t.Context(), gateway+chatPath, body)
				a.check(t, answers, reference(t, f, chatPath, body))
				ids[n] = a.header.Get("X-Request-Id")
			}
			checkPairs(t, f, p, requests)
			process.WaitFor(t, p.p, "all requests to be counted", process.ReadyWithin, func() error {
				if got := p.counted(t, `outcome="ok"`, `path="picker"`); got != requests {
					return fmt.Errorf("%v of %d requests are ok, %v in all", got, requests, p.counted(t))
				}
				return nil
			})
			for _, id := range ids {
				var decision struct {
					Outcome  string
					Attempts []json.RawMessage
				}
				err := process.JSON("http://"+p.admin+"/debug/decisions/"+id, &decision)
				if err != nil || len(decision.Attempts) != 1 || decision.Outcome != "picked" {
					t.Errorf("request %q: %s, %d attempts, %v", id, decision.Outcome, len(decision.Attempts), err)
				}
			}
			explained, err := exec.Command(filepath.Join(process.Root(t), "bin/tandem"), "explain", ids[0], "--admin", "http://"+p.admin).CombinedOutput()
			decode := strings.TrimPrefix(f["decode"][0].url, "http://")
			if err != nil || !strings.Contains(string(explained), ids[0]) || !strings.Contains(string(explained), decode) {
				t.Errorf("tandem explain: %v\n%s", err, explained)
			}
		})
	}
}

// counted is how many requests the picker counts with all of some labels.
func (p *picker) counted(t *testing.T, labels ...string) float64 {
	t.Helper()
	return p.sum(t, "tandem_requests_total{", labels...)
}

// outcomes is how many requests the picker counts, by their outcome.
func (p *picker) outcomes(t *testing.T) map[string]float64 {
	t.Helper()
	counts := make(map[string]float64)
	for _, name := range regexp.MustCompile(`outcome="([^"]*)"`).FindAllStringSubmatch(p.metrics(t), -1) {
		if n := p.counted(t, name[0]); n > 0 {
			counts[name[1]] = n
		}
	}
	return counts
}

// gauge is a metric without labels.
func (p *picker) gauge(t *testing.T, name string) float64 {
	t.Helper()
	return p.sum(t, name+" ")
}

// metrics is the picker's page of them.
func (p *picker) metrics(t *testing.T) string {
	t.Helper()
	resp, err := (&http.Client{Timeout: time.Minute}).Get("http://" + p.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// sum adds up the series that begin so, with all of some labels.
func (p *picker) sum(t *testing.T, begin string, labels ...string) (sum float64) {
	t.Helper()
	for line := range strings.Lines(p.metrics(t)) {
		line = strings.TrimSpace(line)
		series, value := line, line[strings.LastIndexByte(line, ' ')+1:]
		has := strings.HasPrefix(series, begin)
		for _, label := range labels {
			has = has && strings.Contains(series, label)
		}
		if n, err := strconv.ParseFloat(value, 64); has && err == nil {
			sum += n
		}
	}
	return sum
}
