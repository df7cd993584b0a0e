package kube

import (
	"log/slog"
	"reflect"
	"sync"
	"testing"

	"github.com/tandem-gateway/tandem/pools"
)

// reported keeps the rules that were reported last.
type reported struct {
	mu    sync.Mutex // guards rules
	rules Rules
}

func (r *reported) set(rules Rules) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rules = rules
}

func (r *reported) are(want Rules) func() bool {
	return func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return reflect.DeepEqual(r.rules, want)
	}
}

// followRules runs a cluster that follows the rules of the pool "p" until the test ends.
func followRules(t *testing.T, api *apiServer, f *found) *reported {
	t.Helper()
	cfg := Config{InferencePools: []string{"p"}, Rules: LLMDGroup, Kubeconfig: api.kubeconfig(t)}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	k, err := New(cfg, f.set, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	r := &reported{}
	k.ReportRules(r.set)
	run(t, k)
	return r
}

// Objectives and rewrites of the pool are reported as they come, change and go; those of other pools
// are not.
func TestRules_AreFollowed(t *testing.T) {
	api := newAPIServer(t)
	r := followRules(t, api, &found{})
	api.tell(t, "ADDED", "inferenceobjectives", `{apiVersion: llm-d.ai/v1alpha2, kind: InferenceObjective, metadata: {name: critical, resourceVersion: "2"}, spec: {priority: 10, poolRef: {name: p}}}`)
	api.tell(t, "ADDED", "inferenceobjectives", `{apiVersion: llm-d.ai/v1alpha2, kind: InferenceObjective, metadata: {name: unset, resourceVersion: "3"}, spec: {poolRef: {name: p}}}`)
	api.tell(t, "ADDED", "inferenceobjectives", `{apiVersion: llm-d.ai/v1alpha2, kind: InferenceObjective, metadata: {name: elsewhere, resourceVersion: "4"}, spec: {priority: 5, poolRef: {name: q}}}`)
	priorities := map[string]int{"critical": 10, "unset": 0}
	eventually(t, "objectives of the pool", r.are(Rules{Priorities: priorities}))
	api.tell(t, "ADDED", "inferencemodelrewrites", `{apiVersion: llm-d.ai/v1alpha2, kind: InferenceModelRewrite, metadata: {name: a, resourceVersion: "5"}, spec: {poolRef: {name: p}, rules: [
		{matches: [{model: {type: Exact, value: chat}}, {model: {value: talk}}], targets: [{modelRewrite: v1, weight: 90}, {modelRewrite: v2, weight: 10}]},
		{targets: [{modelRewrite: base}]}]}}`)
	api.tell(t, "ADDED", "inferencemodelrewrites", `{apiVersion: llm-d.ai/v1alpha2, kind: InferenceModelRewrite, metadata: {name: b, resourceVersion: "6"}, spec: {poolRef: {name: q}, rules: [{matches: [{model: {value: other}}], targets: [{modelRewrite: x}]}]}}`)
	split := []RewriteTarget{{"v1", 90}, {"v2", 10}}
	eventually(t, "rewrites of the pool", r.are(Rules{Priorities: priorities, Rewrites: []Rewrite{{"", []RewriteTarget{{"base", 1}}}, {"chat", split}, {"talk", split}}}))
	api.tell(t, "DELETED", "inferencemodelrewrites", `{apiVersion: llm-d.ai/v1alpha2, kind: InferenceModelRewrite, metadata: {name: a, resourceVersion: "7"}}`)
	api.tell(t, "MODIFIED", "inferenceobjectives", `{apiVersion: llm-d.ai/v1alpha2, kind: InferenceObjective, metadata: {name: critical, resourceVersion: "8"}, spec: {priority: -1, poolRef: {name: p}}}`)
	eventually(t, "the change", r.are(Rules{Priorities: map[string]int{"critical": -1, "unset": 0}}))
}

// Of several rules for a model the oldest object's counts, and in it the first; objects of one age
// count by name.
func TestRules_TheOldestRewriteCounts(t *testing.T) {
	api := newAPIServer(t)
	r := followRules(t, api, &found{})
	rewrite := func(name, made, rules string) string {
		return `{apiVersion: llm-d.ai/v1alpha2, kind: InferenceModelRewrite, metadata: {name: ` + name + `, resourceVersion: "2", creationTimestamp: "` + made + `"}, spec: {poolRef: {name: p}, rules: [` + rules + `]}}`
	}
	to := func(model, target string) string {
		return `{matches: [{model: {value: ` + model + `}}], targets: [{modelRewrite: ` + target + `}]}`
	}
	api.tell(t, "ADDED", "inferencemodelrewrites", rewrite("young", "2026-03-01T00:00:00Z", to("chat", "young")+","+to("more", "young")))
	api.tell(t, "ADDED", "inferencemodelrewrites", rewrite("b-old", "2026-02-01T00:00:00Z", to("chat", "b")))
	api.tell(t, "ADDED", "inferencemodelrewrites", rewrite("a-old", "2026-02-01T00:00:00Z", to("chat", "a")+","+to("chat", "second")))
	one := func(model, target string) Rewrite { return Rewrite{model, []RewriteTarget{{target, 1}}} }
	eventually(t, "the oldest of each model", r.are(Rules{Priorities: map[string]int{}, Rewrites: []Rewrite{one("chat", "a"), one("more", "young")}}))
}

// Where some targets of a rule have a weight the others are not chosen; a rule without targets is none.
func TestRules_Targets(t *testing.T) {
	for _, x := range []struct {
		targets []rewriteTarget
		want    []RewriteTarget
	}{
		{nil, nil},
		{[]rewriteTarget{{"a", 0}, {"b", 0}}, []RewriteTarget{{"a", 1}, {"b", 1}}},
		{[]rewriteTarget{{"a", 3}, {"b", 0}}, []RewriteTarget{{"a", 3}}},
		{[]rewriteTarget{{"", 3}, {"b", 1}}, []RewriteTarget{{"b", 1}}},
	} {
		if got := (rewriteRule{Targets: x.targets}).targets(); !reflect.DeepEqual(got, x.want) {
			t.Errorf("%v: %v, want %v", x.targets, got, x.want)
		}
	}
}

// A cluster that knows no such objects has servers all the same.
func TestRules_ThatAreNotDefinedHoldNothingUp(t *testing.T) {
	api := newAPIServer(t)
	delete(api.changes, "inferenceobjectives") // 404
	delete(api.changes, "inferencemodelrewrites")
	var f found
	followRules(t, api, &f)
	api.tell(t, "ADDED", "inferencepools", `{apiVersion: inference.networking.k8s.io/v1, kind: InferencePool, metadata: {name: p, resourceVersion: "2"}, spec: {selector: {matchLabels: {app: x}}, targetPorts: [{number: 8000}]}}`)
	api.tell(t, "ADDED", "pods", `{apiVersion: v1, kind: Pod, metadata: {name: p, resourceVersion: "2", labels: {app: x}}, status: {phase: Running, podIP: 10.0.0.1}}`)
	eventually(t, "the pod is a server", func() bool {
		specs, _ := f.get()
		return len(specs) == 1 && specs[0].Role == pools.Both
	})
}

func TestConfig_RulesAreOfAGroupThatIsKnown(t *testing.T) {
	for group, known := range map[string]bool{"": true, LLMDGroup: true, ExtensionGroup: true, "llm-d.io": false} {
		if err := (Config{Rules: group}).Validate(); (err == nil) != known {
			t.Errorf("%q: %v", group, err)
		}
	}
}
