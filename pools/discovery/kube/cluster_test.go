package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"sigs.k8s.io/yaml"

	"github.com/tandem-gateway/tandem/pools"
)

// apiServer answers lists and watches of pods and nodes, as far as an informer needs
// it; loadtest/e2e has a real one.
type apiServer struct {
	*httptest.Server
	changes map[string]chan string // by resource: watch events
}

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	a := &apiServer{changes: map[string]chan string{"pods": make(chan string), "nodes": make(chan string)}}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		changes, known := a.changes[path.Base(r.URL.Path)]
		query := r.URL.Query()
		switch {
		case !known:
			http.NotFound(w, r)
		case query.Get("watch") == "":
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprint(w, `{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`)
		case query.Get("sendInitialEvents") != "":
			http.Error(w, "list first", http.StatusBadRequest)
		default:
			w.Header().Set("Content-Type", "application/json")
			for w.(http.Flusher).Flush(); ; w.(http.Flusher).Flush() {
				select {
				case <-r.Context().Done():
					return
				case event := <-changes:
					_, _ = fmt.Fprintln(w, event)
				}
			}
		}
	}))
	t.Cleanup(a.Close)
	return a
}

// tell sends a watch event of an object.
func (a *apiServer) tell(t *testing.T, event, resource, manifest string) {
	t.Helper()
	object, err := yaml.YAMLToJSON([]byte(manifest))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]any{"type": event, "object": json.RawMessage(object)})
	if err != nil {
		t.Fatal(err)
	}
	a.changes[resource] <- string(text)
}

// kubeconfig writes the way to it, with a namespace.
func (a *apiServer) kubeconfig(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, namespace: ns}}], clusters: [{name: c, cluster: {server: %q}}]}`, a.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// found keeps what was found last.
type found struct {
	mu    sync.Mutex // guards specs and times
	specs []pools.Spec
	times int
}

func (f *found) set(specs []pools.Spec) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.specs, f.times = specs, f.times+1
}

func (f *found) get() ([]pools.Spec, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.specs, f.times
}

func TestCluster_FollowsPodsAndNodes(t *testing.T) {
	api := newAPIServer(t)
	var f found
	k, err := New(Config{Pods: "app=x", RackLabel: "rack", Kubeconfig: api.kubeconfig(t)}, f.set, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if k.cfg.Namespace != "ns" {
		t.Errorf("namespace %q", k.cfg.Namespace)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.Run(ctx)
	}()
	defer func() {
		cancel()
		<-done
	}()
	eventually(t, "it says that there is none", func() bool { _, times := f.get(); return times == 1 })
	one := func(is func(pools.Spec) bool) func() bool {
		return func() bool {
			specs, _ := f.get()
			return len(specs) == 1 && is(specs[0])
		}
	}
	pod := func(version int, more string) string {
		return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: ns, resourceVersion: "%d", labels: {app: x, tandem/role: prefill%s}},
spec: {nodeName: n1}, status: {phase: Running, podIP: 10.0.0.1, conditions: [{type: Ready, status: "True"}]}}`, version, more)
	}
	api.tell(t, "ADDED", "pods", pod(2, ""))
	eventually(t, "the pod is a server", one(func(s pools.Spec) bool { return s.URL == "http://10.0.0.1:8000" && s.Role == pools.Prefill && !s.Drain }))
	api.tell(t, "ADDED", "nodes", `{apiVersion: v1, kind: Node, metadata: {name: n1, resourceVersion: "2", labels: {rack: r1}}}`)
	eventually(t, "its node tells the rack", one(func(s pools.Spec) bool { return s.Host == "n1" && s.Rack == "r1" }))
	api.tell(t, "MODIFIED", "pods", pod(3, `, tandem/drain: "true"`))
	eventually(t, "it drains", one(func(s pools.Spec) bool { return s.Drain }))
	_, before := f.get()
	api.tell(t, "MODIFIED", "pods", pod(4, `, tandem/drain: "true", unread: "yes"`))
	api.tell(t, "DELETED", "pods", pod(5, ""))
	eventually(t, "it is gone", func() bool {
		specs, _ := f.get()
		return len(specs) == 0
	})
	if _, after := f.get(); after != before+1 {
		t.Errorf("told %d times of one change that matters", after-before)
	}
	if up := testutil.CollectAndCount(k); up != 2 {
		t.Errorf("%d resources are said to be up or not", up)
	}
}

func TestCluster_TellsWhetherTheAPIServerAnswers(t *testing.T) {
	status := http.StatusOK
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	k := &Cluster{log: slog.New(slog.DiscardHandler), problems: map[string]string{}}
	transport := &http.Transport{}
	client := &http.Client{Transport: notingTransport{k, transport}}
	defer transport.CloseIdleConnections()
	ask := func() {
		if resp, err := client.Get(api.URL + "/api/v1/namespaces/ns/pods"); err == nil {
			_ = resp.Body.Close()
		}
	}
	up := func() float64 { return testutil.ToFloat64(k) }
	ask()
	if up() != 1 {
		t.Error("not up after an answer")
	}
	for _, refusal := range []int{http.StatusForbidden, http.StatusInternalServerError} {
		status = refusal
		ask()
		if up() != 0 {
			t.Errorf("up after %d", refusal)
		}
	}
	status = http.StatusGone // the watch is too old; the next list is due
	ask()
	if up() != 1 {
		t.Error("not up after an answer again")
	}
	api.Close()
	ask()
	if up() != 0 {
		t.Error("up without an API server")
	}
	if len(k.problems) != 1 {
		t.Errorf("resources %v", k.problems)
	}
}

// client-go sleeps between two tries, some of them whatever the context says: 800 ms
// at first, 30 s in the end. A busy machine may take as long by itself, so one of some
// tries will do.
func TestCluster_EndsAtOnceWithoutAnAPIServer(t *testing.T) {
	api := newAPIServer(t)
	access := api.kubeconfig(t)
	api.Close()
	soonest := time.Minute
	for tries := 0; tries < 20 && soonest > 600*time.Millisecond; tries++ {
		k, err := New(Config{Pods: "app=x", Kubeconfig: access}, func([]pools.Spec) {}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			k.Run(ctx)
		}()
		eventually(t, "it noticed", func() bool { return k.Problem() != "" })
		cancel()
		began := time.Now()
		<-done
		soonest = min(soonest, time.Since(began))
	}
	if soonest > 600*time.Millisecond {
		t.Errorf("it ended after %v at best", soonest)
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}
