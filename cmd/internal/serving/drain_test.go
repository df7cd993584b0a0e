package serving

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// A server that drains gets no request within a second, and its streams finish.
func TestDrain_OfAServer(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"api", "file", "label"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "tandem.yaml")
			kubernetes := newPods(t)
			c := newCluster(t, shape{prefill: 1, decode: 2, engine: func(cfg *engine.Config) { cfg.TimeScale = 1 }, config: func(cfg *config) {
				if by == "label" {
					cfg.discovery.kube.Pods, cfg.discovery.kube.Namespace, cfg.discovery.kube.Kubeconfig = "tandem/role", "ns", kubernetes.file
					kubernetes.tell("ADDED", 0, "prefill", cfg.servers[0].specs[0].URL, false)
					for i, spec := range cfg.servers[1].specs {
						kubernetes.tell("ADDED", 1+i, "decode", spec.URL, false)
					}
					cfg.servers[0].specs, cfg.servers[1].specs = nil, nil
				}
			}})
			write := func(drain string) {
				text := "prefill: [" + c.prefill[0].URL() + "]\ndecode:\n- " + c.decode[1].URL() + "\n- {url: " + c.decode[0].URL() + drain + "}\n"
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("")
			if by == "file" {
				stop := c.node.followConfig(t.Context(), file, contentHash(file), pflag.NewFlagSet("", pflag.ContinueOnError))
				defer stop()
			}
			id := strings.TrimPrefix(c.decode[0].URL(), "http://")
			set := map[string]map[bool]func(){
				"api": {
					true:  func() { c.raw(http.MethodPost, c.admin+"/drain/"+id) },
					false: func() { c.raw(http.MethodDelete, c.admin+"/drain/"+id) },
				},
				"file": {true: func() { write(", drain: true") }, false: func() { write("") }},
				"label": {
					true:  func() { kubernetes.tell("MODIFIED", 1, "decode", c.decode[0].URL(), true) },
					false: func() { kubernetes.tell("MODIFIED", 1, "decode", c.decode[0].URL(), false) },
				},
			}[by]

			// Streams, of which one is on the server that drains.
			var streams []*http.Response
			on := func(resp *http.Response) bool { return resp.Header.Get("X-Tandem-Decode") == id }
			for len(streams) < 2 || !slices.ContainsFunc(streams, on) && len(streams) < 50 {
				conn := c.dialRequest(chatBodyOf(300, `,"stream":true,"ignore_eos":true`))
				defer func() { _ = conn.Close() }()
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatal(err)
				}
				streams = append(streams, resp)
			}
			if !slices.ContainsFunc(streams, on) {
				t.Fatal("no stream on the server that is to drain")
			}
			set[true]()
			drains := func() bool {
				return gjson.Get(c.get("/debug/servers").body, `#(id=="`+id+`").draining`).Bool()
			}
			eventually(t, "it drains", drains)
			before := len(ofClients(c.decode[0]))
			for range 5 {
				if got := c.post("/v1/chat/completions", chatBodyOf(2, "")); got.status != 200 || got.header.Get("X-Tandem-Decode") == id {
					t.Errorf("%d on %s", got.status, got.header.Get("X-Tandem-Decode"))
				}
			}
			if n := len(ofClients(c.decode[0])) - before; n != 0 {
				t.Errorf("%d requests reached it", n)
			}
			for _, resp := range streams {
				if got := readResponse(resp); got.err != nil || got.events[len(got.events)-1] != "[DONE]" {
					t.Errorf("a stream ended with %v", got.err)
				}
			}
			set[false]()
			eventually(t, "it drains no more", func() bool { return !drains() })
			c.node.fleet.SetDrain(strings.TrimPrefix(c.decode[1].URL(), "http://"), true) // it may look the better one
			if got := c.post("/v1/chat/completions", chatBodyOf(2, "")); got.status != 200 || got.header.Get("X-Tandem-Decode") != id {
				t.Errorf("%d on %s", got.status, got.header.Get("X-Tandem-Decode"))
			}
		})
	}
}

func TestDrain_OfNobody(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	if got := c.raw(http.MethodPost, c.admin+"/drain/10.0.0.9:1"); got.status != 404 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := c.raw(http.MethodGet, c.admin+"/drain/10.0.0.9:1"); got.status != 405 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// pods is as much of an API server as an informer of pods needs: an empty list, and what
// happens to them since. loadtest/e2e has a real one.
type pods struct {
	t       *testing.T
	file    string // kubeconfig
	changes chan string
	version int
}

func newPods(t *testing.T) *pods {
	p := &pods{t: t, file: filepath.Join(t.TempDir(), "kubeconfig"), changes: make(chan string, 16), version: 1}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case !strings.HasSuffix(r.URL.Path, "/pods"):
			http.NotFound(w, r)
		case r.URL.Query().Get("watch") == "":
			_, _ = fmt.Fprint(w, `{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`)
		case r.URL.Query().Get("sendInitialEvents") != "":
			http.Error(w, "list first", http.StatusBadRequest)
		default:
			for w.(http.Flusher).Flush(); ; w.(http.Flusher).Flush() {
				select {
				case <-r.Context().Done():
					return
				case change := <-p.changes:
					_, _ = fmt.Fprintln(w, change)
				}
			}
		}
	}))
	t.Cleanup(api.Close)
	access := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, namespace: ns}}], clusters: [{name: c, cluster: {server: %q}}]}`, api.URL)
	if err := os.WriteFile(p.file, []byte(access), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// tell says that the pod of a server came or changed.
func (p *pods) tell(event string, n int, role, server string, drain bool) {
	p.t.Helper()
	host, port, err := net.SplitHostPort(strings.TrimPrefix(server, "http://"))
	if err != nil {
		p.t.Fatal(err)
	}
	p.version++
	p.changes <- fmt.Sprintf(`{"type":%q,"object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p%d","namespace":"ns","resourceVersion":"%d","labels":{"tandem/role":%q,"tandem/ports":%q,"tandem/drain":"%v"}},
		"spec":{"nodeName":"n1"},"status":{"phase":"Running","podIP":%q,"conditions":[{"type":"Ready","status":"True"}]}}}`, event, n, p.version, role, port, drain, host)
}
