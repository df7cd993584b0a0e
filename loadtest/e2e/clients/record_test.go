package clients

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

var record = flag.String("record", "", "`directory` that the shape of an agent's turns is written to, one file for each API")

// recording is the requests of two turns of an agent. Each is written as what it has that the one
// before has not: a request begins with its first bytes, goes on with a text, and ends with its
// last bytes. cmd/internal/serving reads it.
type recording struct {
	Path     string            `json:"path"`
	Requests []recordedRequest `json:"requests"`
}

type recordedRequest struct {
	First int    `json:"first"`
	Text  string `json:"text"`
	Last  int    `json:"last"`
}

func (r *recording) add(before, body []byte) {
	first, last := 0, 0
	for first < min(len(before), len(body)) && before[first] == body[first] {
		first++
	}
	for last < min(len(before), len(body))-first && before[len(before)-1-last] == body[len(body)-1-last] {
		last++
	}
	r.Requests = append(r.Requests, recordedRequest{first, string(body[first : len(body)-last]), last})
}

// Not a test: with -record it runs the agent for two turns on each API, as TestClients does, and
// writes what it sent, disguised.
func TestRecord(t *testing.T) {
	if *record == "" {
		t.Skip("no -record")
	}
	f := startFleet(t)
	for _, by := range agentAPIs {
		tap := newTap(t, f.gateway)
		runTurns(t, newAgent(t, tap.url, by.auth))
		if len(tap.bodies) != 4 {
			t.Fatalf("%s: %d requests in two turns, want 4", by.api, len(tap.bodies))
		}
		r := recording{Path: tap.path}
		var before []byte
		for _, body := range tap.bodies {
			disguised, err := disguise(body)
			if err != nil {
				t.Fatal(err)
			}
			r.add(before, disguised)
			before = disguised
		}
		text, err := json.MarshalIndent(r, "", "\t")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(*record, by.api+".json"), append(text, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func runTurns(t *testing.T, a agent) {
	t.Helper()
	file := filepath.Join(a.dir, "harbour.txt")
	if err := os.WriteFile(file, []byte(strings.Repeat("the mole is 200 m long\n", 3)), 0o600); err != nil {
		t.Fatal(err)
	}
	ask, says := readsFile(file)
	if err := a.turn(t, &apiResults{}, false, model, ask, says); err != nil {
		t.Fatal(err)
	}
	if err := a.runsCommand(t, &apiResults{}); err != nil {
		t.Fatal(err)
	}
}

// tap passes requests on to a gateway and keeps their bodies.
type tap struct {
	url    string
	mu     sync.Mutex // guards what follows
	path   string
	bodies [][]byte
}

func newTap(t *testing.T, gateway string) *tap {
	t.Helper()
	target, err := url.Parse(gateway)
	if err != nil {
		t.Fatal(err)
	}
	to, p := httputil.NewSingleHostReverseProxy(target), &tap{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the agent has gone
		}
		p.mu.Lock()
		p.path, p.bodies = r.URL.Path, append(p.bodies, body)
		p.mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(body))
		to.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	p.url = s.URL
	return p
}
