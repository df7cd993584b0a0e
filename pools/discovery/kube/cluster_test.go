package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"

	"github.com/tandem-gateway/tandem/loadtest/testlog"
	"github.com/tandem-gateway/tandem/pools"
)

// apiServer answers lists and watches of pods and nodes, as far as an informer needs
// it; loadtest/e2e has a real one.
type apiServer struct {
	*httptest.Server
	changes map[string]chan string // by resource: watch events

	mu        sync.Mutex        // guards the rest
	selectors map[string]string // by resource, of its list
	patches   []string          // of pods, "name patch"
	refuses   bool              // patches
}

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	a := &apiServer{changes: make(map[string]chan string), selectors: make(map[string]string)}
	for _, resource := range []string{"pods", "nodes", "inferencepools", "endpointslices", "inferenceobjectives", "inferencemodelrewrites"} {
		a.changes[resource] = make(chan string)
	}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		changes, known := a.changes[path.Base(r.URL.Path)]
		query := r.URL.Query()
		switch {
		case r.Method == http.MethodPatch:
			a.patch(w, r)
		case !known:
			http.NotFound(w, r)
		case query.Get("watch") == "":
			a.mu.Lock()
			a.selectors[path.Base(r.URL.Path)] = query.Get("labelSelector")
			a.mu.Unlock()
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

// patch takes a change of a pod, or refuses it.
func (a *apiServer) patch(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.patches = append(a.patches, path.Base(r.URL.Path)+" "+string(body))
	if err != nil || a.refuses {
		http.Error(w, "forbidden", http.StatusForbidden)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":%q}}`, path.Base(r.URL.Path))
}

// patched are the changes since it was last asked.
func (a *apiServer) patched() (patches []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	patches, a.patches = a.patches, nil
	return patches
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

func TestCluster_ReportsWhetherTheAPIServerAnswers(t *testing.T) {
	status := http.StatusOK
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	k := &Cluster{log: slog.New(slog.DiscardHandler), problems: map[string]problem{}}
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

// run follows a cluster until the test ends.
func run(t *testing.T, k *Cluster) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

// Pods that a named InferencePool selects are servers, with its ports, and so are the
// endpoints of Services; those of another pool are not.
func TestCluster_FollowsInferencePoolsAndServices(t *testing.T) {
	api := newAPIServer(t)
	var f found
	k, err := New(Config{InferencePools: []string{"mine"}, Services: "app=y", Namespace: "own", Kubeconfig: api.kubeconfig(t)}, f.set, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if k.cfg.Namespace != "own" {
		t.Errorf("the namespace is %q, though one is configured", k.cfg.Namespace)
	}
	run(t, k)
	eventually(t, "it says that there is none", func() bool { _, times := f.get(); return times == 1 })
	ids := func(want ...string) func() bool {
		return func() bool {
			specs, _ := f.get()
			var got []string
			for _, s := range specs {
				got = append(got, s.ID())
			}
			return slices.Equal(got, want)
		}
	}
	for i, name := range []string{"other", "mine"} {
		api.tell(t, "ADDED", "inferencepools", fmt.Sprintf(`{apiVersion: inference.networking.k8s.io/v1, kind: InferencePool, metadata: {name: %s, namespace: own, resourceVersion: "%d"},
spec: {selector: {matchLabels: {pool: %s}}, targetPorts: [{number: 900%d}]}}`, name, i+2, name, i))
		api.tell(t, "ADDED", "pods", fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: p%d, namespace: own, resourceVersion: "%d", labels: {pool: %s}},
status: {phase: Running, podIP: 10.0.0.%d, conditions: [{type: Ready, status: "True"}]}}`, i, i+2, name, i))
	}
	eventually(t, "the pod of the pool that is named is a server", ids("10.0.0.1:9001"))
	api.tell(t, "ADDED", "endpointslices", `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, metadata: {name: s, namespace: own, resourceVersion: "2"},
endpoints: [{addresses: [10.0.1.1]}], ports: [{name: http, port: 8080}]}`)
	eventually(t, "so is the endpoint", ids("10.0.0.1:9001", "10.0.1.1:8080"))
	api.mu.Lock()
	defer api.mu.Unlock()
	if want := map[string]string{"pods": "", "nodes": "", "inferencepools": "", "endpointslices": "app=y"}; !maps.Equal(api.selectors, want) {
		t.Errorf("it asked for %v", api.selectors)
	}
}

// Only what is asked for is followed, and pods by their selector.
func TestCluster_AsksForWhatIsConfigured(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want map[string]string
	}{
		{Config{Pods: "app=x"}, map[string]string{"pods": "app=x", "nodes": ""}},
		{Config{Services: "app=y"}, map[string]string{"endpointslices": "app=y", "nodes": ""}},
		{Config{Pods: "app=x", InferencePools: []string{"mine"}}, map[string]string{"pods": "", "inferencepools": "", "nodes": ""}},
	} {
		api := newAPIServer(t)
		var f found
		c.cfg.Kubeconfig = api.kubeconfig(t)
		k, err := New(c.cfg, f.set, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		run(t, k)
		eventually(t, fmt.Sprintf("%+v: it asks for what is configured", c.cfg), func() bool {
			api.mu.Lock()
			defer api.mu.Unlock()
			_, times := f.get()
			return times == 1 && maps.Equal(api.selectors, c.want)
		})
	}
}

// Pods of units that leave get their cost, and lose it when they stay; what the API server
// refuses is logged when it begins, and tried again at the next call.
func TestCluster_SetPodCosts(t *testing.T) {
	api := newAPIServer(t)
	var f found
	var log testlog.Buffer
	k, err := New(Config{Pods: "app=x", Kubeconfig: api.kubeconfig(t)}, f.set, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	run(t, k)
	pod := func(name, version, annotations string) string {
		return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: ns, resourceVersion: "%s", labels: {app: x, tandem/rack: "v%s"}, annotations: {%s}},
status: {phase: Running, podIP: 10.0.0.1%s, conditions: [{type: Ready, status: "True"}]}}`, name, version, version, annotations, name[1:])
	}
	known := func(n int, rack string) {
		t.Helper()
		eventually(t, "the pods are known", func() bool {
			specs, _ := f.get()
			return len(specs) == n && specs[0].Rack == rack
		})
	}
	api.tell(t, "ADDED", "pods", pod("p1", "2", ""))
	api.tell(t, "ADDED", "pods", pod("p2", "3", ""))
	known(2, "v2")
	const (
		given = `p1 {"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"-1","tandem/leaving":"-1"}}}`
		taken = `p1 {"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":null,"tandem/leaving":null}}}`
	)
	patched := func(when, want string) {
		t.Helper()
		eventually(t, when, func() bool { return slices.Equal(slices.Compact(api.patched()), []string{want}) })
	}
	refuse := func(refuses bool) {
		api.mu.Lock()
		defer api.mu.Unlock()
		api.refuses = refuses
	}
	warnings := 0
	for round := range 2 {
		refuse(true)
		for range 2 {
			k.SetPodCosts(map[string]int{"p1": -1})
			patched("one leaves, and the server refuses", given)
		}
		warnings++
		refuse(false)
		k.SetPodCosts(map[string]int{"p1": -1})
		patched(fmt.Sprintf("round %d: one leaves", round), given)
	}
	api.tell(t, "MODIFIED", "pods", pod("p1", "4", `tandem/leaving: "-1", controller.kubernetes.io/pod-deletion-cost: "-1"`))
	known(2, "v4")
	k.SetPodCosts(map[string]int{"p1": -1}) // which it has: nothing is to be done
	k.SetPodCosts(nil)
	patched("it stays after all", taken)
	eventually(t, "each refusal is logged once", func() bool { return strings.Count(log.String(), "cannot set or remove the deletion cost") == warnings })
}

// What is wrong with an object is logged when it comes up, and when it changes.
func TestCluster_LogsAProblemOfAnObjectOnce(t *testing.T) {
	var log testlog.Buffer
	k := &Cluster{log: slog.New(slog.NewTextHandler(&log, nil))}
	one, other := errors.New("role x"), errors.New("port y")
	var before map[string]error
	for i, c := range []struct {
		now  map[string]error
		want int
	}{
		{nil, 0}, {map[string]error{"pod/a": one}, 1}, {map[string]error{"pod/a": errors.New("role x")}, 1}, {map[string]error{"pod/a": other}, 2},
		{map[string]error{"pod/a": other, "pod/b": one}, 3}, {nil, 3}, {map[string]error{"pod/a": other}, 4},
	} {
		k.logProblems(before, c.now)
		before = c.now
		if got := strings.Count(log.String(), "not a server because of its labels"); got != c.want {
			t.Errorf("look %d: logged %d times, want %d", i, got, c.want)
		}
	}
}

// An InferencePool that is named and is not there is said, once each time that it is missing: its name may be mistyped.
func TestCluster_SaysWhichInferencePoolIsMissing(t *testing.T) {
	api := newAPIServer(t)
	var f found
	var log testlog.Buffer
	k, err := New(Config{InferencePools: []string{"mine", "typo"}, Kubeconfig: api.kubeconfig(t)}, f.set, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	run(t, k)
	said := func(pool string) int { return strings.Count(log.String(), "pool="+pool+" namespace=ns") }
	eventually(t, "both are missing", func() bool { return said("mine") == 1 && said("typo") == 1 })
	pool := func(event string, version int) {
		api.tell(t, event, "inferencepools", fmt.Sprintf(`{apiVersion: inference.networking.k8s.io/v1, kind: InferencePool, metadata: {name: mine, namespace: ns, resourceVersion: "%d"},
spec: {selector: {matchLabels: {app: x}}, targetPorts: [{number: 8000}]}}`, version))
	}
	pool("ADDED", 2)
	api.tell(t, "ADDED", "pods", `{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: ns, resourceVersion: "3", labels: {app: x}}, status: {phase: Running, podIP: 10.0.0.1}}`)
	eventually(t, "its pod is a server", func() bool {
		specs, _ := f.get()
		return len(specs) == 1
	})
	pool("DELETED", 4)
	eventually(t, "it is missing again", func() bool { return said("mine") == 2 })
	if missing := k.MissingPools(); !slices.Equal(missing, []string{"mine", "typo"}) {
		t.Errorf("missing are %q", missing)
	}
	if said("typo") != 1 {
		t.Errorf("the one that is never there is said %d times", said("typo"))
	}
}

// That a resource is not answered is logged when it begins and when it ends, of each by itself.
func TestCluster_LogsWhenAResourceIsNotAnswered(t *testing.T) {
	var log testlog.Buffer
	k := &Cluster{log: slog.New(slog.NewTextHandler(&log, nil)), problems: make(map[string]problem)}
	for i, c := range []struct {
		resource, problem, said string
	}{
		{"pods", "", ""}, {"nodes", "403 Forbidden", "does not answer"}, {"nodes", "500", ""}, {"pods", "403 Forbidden", "does not answer"},
		{"nodes", "", "answers again"}, {"nodes", "", ""}, {"nodes", "500", "does not answer"}, {"nodes", "", "answers again"}, {"pods", "", "answers again"},
	} {
		before := log.String()
		k.recordAnswer(c.resource, false, c.problem)
		said := strings.TrimPrefix(log.String(), before)
		if (said == "") != (c.said == "") || !strings.Contains(said, c.said) {
			t.Errorf("answer %d: said %q, want %q", i, said, c.said)
		}
		if (k.Problem() == "") != (i == 0 || i == 8) {
			t.Errorf("answer %d: problem %q", i, k.Problem())
		}
	}
}

// Who may list pods and not watch them is told so once, in the API server's words: that lists are answered meanwhile
// does not mean that all is well.
func TestCluster_SaysWhichRightIsMissing(t *testing.T) {
	const refusal = `pods is forbidden: User \"u\" cannot watch resource \"pods\" in API group \"\" in the namespace \"ns\"`
	var watches atomic.Int32
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") == "" {
			_, _ = fmt.Fprint(w, `{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`)
			return
		}
		watches.Add(1)
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"%s"}`, refusal)
	}))
	defer api.Close()
	var f found
	var log testlog.Buffer
	k, err := New(Config{Pods: "app=x", Kubeconfig: (&apiServer{Server: api}).kubeconfig(t)}, f.set, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	run(t, k)
	eventually(t, "it has tried to watch several times", func() bool { return watches.Load() >= 8 }) // of pods and nodes
	if p := k.Problem(); !strings.Contains(p, "403 Forbidden: pods is forbidden: User \"u\" cannot watch") {
		t.Errorf("problem %q", p)
	}
	if again, not := strings.Count(log.String(), "answers again"), strings.Count(log.String(), "does not answer"); again != 0 || not != 2 {
		t.Errorf("it says %d times that Kubernetes answers again, and %d times that it does not:\n%s", again, not, log.String())
	}
}

// Answers are noted and collected at once.
func TestCluster_IsSafeForConcurrentUse(t *testing.T) {
	k := &Cluster{log: slog.New(slog.DiscardHandler), problems: make(map[string]problem), podCosts: podCosts{changed: make(chan struct{}, 1)}}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { k.patchCosts(ctx) })
	for _, each := range []func(){
		func() { k.recordAnswer("pods", false, "500"); k.recordAnswer("pods", false, "") },
		func() { testutil.CollectAndCount(k) },
		func() { k.Problem() },
		func() { k.SetPodCosts(map[string]int{"a": -1}) },
	} {
		wg.Go(func() {
			for range 100 {
				each()
			}
		})
	}
	time.AfterFunc(50*time.Millisecond, cancel)
	wg.Wait()
	if k.Problem() != "" {
		t.Error(k.Problem())
	}
}

// Access that cannot be had is said before anything runs.
func TestNew_SaysWhatIsWrongWithTheAccess(t *testing.T) {
	file := func(cluster string) string {
		name := filepath.Join(t.TempDir(), "kubeconfig")
		text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: %s}]}`, cluster)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for _, c := range []struct{ namespace, kubeconfig, want string }{
		{"", "/nowhere", "access to Kubernetes"},
		{"ns", "/nowhere", "access to Kubernetes"},
		{"ns", file(`{server: "http://10.0.0.1", certificate-authority: /nowhere}`), "certificate-authority"},
		{"ns", file(`{server: "https://10.0.0.1", certificate-authority-data: bm9uZQ==}`), "client of Kubernetes"},
	} {
		if _, err := New(Config{Pods: "a", Namespace: c.namespace, Kubeconfig: c.kubeconfig}, nil, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestConfig_Enabled(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want bool
	}{{Default(), false}, {Config{Namespace: "ns"}, false}, {Config{Pods: "a"}, true}, {Config{Services: "a"}, true}, {Config{InferencePools: []string{"a"}}, true}} {
		if got := c.cfg.Enabled(); got != c.want {
			t.Errorf("%+v: %v", c.cfg, got)
		}
	}
}

// Of pods and nodes only what is read is kept: a cluster has many. What is no object of the
// API is kept as it is, and one that cannot be read is an error.
func TestTrim_KeepsWhatIsRead(t *testing.T) {
	object := func(manifest string) *unstructured.Unstructured {
		text, err := yaml.YAMLToJSON([]byte(manifest))
		if err != nil {
			t.Fatal(err)
		}
		fields, err := runtime.Decode(unstructured.UnstructuredJSONScheme, text)
		if err != nil {
			t.Fatal(err)
		}
		return fields.(*unstructured.Unstructured)
	}
	const meta = `metadata: {name: x, labels: {a: b}, annotations: {c: d}, resourceVersion: "7", managedFields: [{manager: m}], ownerReferences: [{name: o}]}`
	pod, err := trimPod(object(`{apiVersion: v1, kind: Pod, ` + meta + `, spec: {nodeName: node-1, containers: [{name: c, image: i}]}, status: {phase: Running, podIP: 10.0.0.1, hostIP: 10.0.0.2, conditions: [{type: Ready}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}, ResourceVersion: "7"},
		Spec:       corev1.PodSpec{NodeName: "node-1"},
		Status:     corev1.PodStatus{Phase: "Running", PodIP: "10.0.0.1", Conditions: []corev1.PodCondition{{Type: "Ready"}}},
	}
	if !reflect.DeepEqual(pod, want) {
		t.Errorf("of a pod is kept %+v", pod)
	}
	node, err := trimNode(object(`{apiVersion: v1, kind: Node, ` + meta + `, status: {images: [{sizeBytes: 1}]}}`))
	if wantNode := (&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: map[string]string{"a": "b"}, ResourceVersion: "7"}}); err != nil || !reflect.DeepEqual(node, wantNode) {
		t.Errorf("of a node is kept %+v, %v", node, err)
	}
	for name, trim := range map[string]func(any) (any, error){"pod": trimPod, "node": trimNode} {
		gone := cache.DeletedFinalStateUnknown{Key: "ns/x"}
		if kept, err := trim(gone); err != nil || kept != any(gone) {
			t.Errorf("%s that is gone: %v, %v", name, kept, err)
		}
		if _, err := trim(object(`{apiVersion: v1, kind: X, metadata: {name: x}, spec: 5}`)); err == nil || !strings.Contains(err.Error(), "X x") {
			t.Errorf("%s that cannot be read: %v", name, err)
		}
	}
}
