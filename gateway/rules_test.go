package gateway

import (
	"testing"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/gateway/access"
)

// ruled is a gateway with two models and an alias, whose key of a proxy may say for whom it asks.
func ruled(t *testing.T) *running {
	t.Helper()
	spec := alone(t)
	spec.URL = listing(t, `{"data":[{"id":"big"},{"id":"small"}]}`)
	of := usual(t, "ada", "proxy may-set=[priority,tenant]")
	of.config = func(c *Config) { c.Aliases = []Alias{{Name: "mine", Targets: []Target{{"small", 1}}}} }
	return run(t, of, complete().roundTrip, spec)
}

// Requests go to the models that rules name: those of a model before those of every model, the
// configuration's aliases before both. Rules may change, and be gone.
func TestRules_RewriteModels(t *testing.T) {
	g := ruled(t)
	model := func(asked string) string {
		t.Helper()
		e := g.choose(`{"prompt":"hi","model":"`+asked+`"}`, AnswerShown, as("ada")...)
		defer e.End()
		return e.answer.req.Model + " " + gjson.GetBytes(e.answer.req.Body.Bytes(), "model").String()
	}
	g.server.SetRules(Rules{
		Aliases: []Alias{
			{Name: "chat", Targets: []Target{{"big", 1}}}, {Name: "mine", Targets: []Target{{"big", 1}}},
			{Name: "small", Targets: []Target{{"big", 1e9}, {"small", 1e-9}}}, // its own name is one of its targets
		},
	})
	for asked, want := range map[string]string{"chat": "big big", "mine": "small small", "small": "big big", "big": "big big"} {
		if got := model(asked); got != want {
			t.Errorf("%s goes to %s, want %s", asked, got, want)
		}
	}
	if got := g.post(`{"prompt":"hi","model":"other"}`, as("ada")...); got.status != 404 {
		t.Errorf("a model of no rule: %d %s", got.status, got.body)
	}
	if names := gjson.Get(g.ask("GET", "/v1/models", "", as("ada")...).body, "data.#.id").String(); names != `["big","chat","mine","small"]` {
		t.Errorf("the models are %s", names)
	}
	g.server.SetRules(Rules{Aliases: []Alias{{Name: "chat", Targets: []Target{{"big", 1}}}}, Fallback: []Target{{"small", 1}}})
	for asked, want := range map[string]string{"chat": "big big", "other": "small small", "big": "small small", "mine": "small small"} {
		if got := model(asked); got != want {
			t.Errorf("with a rule for every model %s goes to %s, want %s", asked, got, want)
		}
	}
	g.server.SetRules(Rules{})
	if got := model("big"); got != "big big" {
		t.Errorf("without rules big goes to %s", got)
	}
}

// A request is of the class of the InferenceObjective that it names, and takes the turn of the tenant
// that it names, as far as its key may say so; under the old names of both headers too, and not where
// the objective is not there.
func TestRules_ObjectivesAndTenants(t *testing.T) {
	g := ruled(t)
	g.server.SetRules(Rules{Levels: map[string]int{"critical": 10, "sheddable": -1}})
	for _, x := range []struct {
		key     string
		headers []string
		class   string
		tenant  string
	}{
		{"ada", nil, "standard", "ada"},
		{"ada", []string{access.ObjectiveHeader, "critical", access.FairnessHeader, "bob"}, "standard", "ada"},
		{"ada", []string{access.ObjectiveHeader, "sheddable"}, "batch", "ada"},
		{"proxy", []string{access.ObjectiveHeader, "critical", access.FairnessHeader, "bob"}, "interactive", "bob"},
		{"proxy", []string{access.OldObjectiveHeader, "critical", access.OldFairnessHeader, "bob"}, "interactive", "bob"},
		{"proxy", []string{access.OldObjectiveHeader, "sheddable", access.ObjectiveHeader, "critical"}, "interactive", "proxy"},
		{"proxy", []string{access.ObjectiveHeader, "unheard"}, "standard", "proxy"},
	} {
		e := g.pick(`{"prompt":"hi","model":"big"}`, AnswerShown, append(as(x.key), x.headers...)...)
		if req := e.answer.req; g.server.access.Class(req.Class) != x.class || req.Tenant != x.tenant {
			t.Errorf("%s with %q: class %s, tenant %s; want %s and %s", x.key, x.headers, g.server.access.Class(req.Class), req.Tenant, x.class, x.tenant)
		}
		e.End()
	}
}
