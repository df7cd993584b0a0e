package gateway

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/tidwall/gjson"
)

// A key may stand in either header, as OpenAI's or Anthropic's clients send it.
func TestAuthenticate(t *testing.T) {
	g := run(t, usual(t, "ada"), complete().roundTrip, alone(t))
	for _, x := range []struct {
		headers []string
		status  int
		message string
	}{
		{[]string{"Authorization", "Bearer sk-ada"}, 200, ""},
		{[]string{"Authorization", "bearer  sk-ada "}, 200, ""},
		{[]string{"X-Api-Key", "sk-ada"}, 200, ""},
		{[]string{"Authorization", "Basic x", "X-Api-Key", "sk-ada"}, 200, ""},
		{[]string{"Authorization", "Bearer sk-eve", "X-Api-Key", "sk-ada"}, 401, "not known"},
		{[]string{"Authorization", "sk-ada"}, 401, "is needed"},
		{[]string{"Authorization", "Bearer "}, 401, "is needed"},
		{[]string{"X-Api-Key", "sk-eve"}, 401, "not known"},
		{nil, 401, "is needed"},
	} {
		got := g.post(`{"model":"m","prompt":"hi"}`, x.headers...)
		if got.status != x.status || !strings.Contains(gjson.Get(got.body, "error.message").String(), x.message) || (got.header.Get("WWW-Authenticate") == "Bearer") != (x.status == 401) {
			t.Errorf("%q: %d %s", x.headers, got.status, got.body)
		}
	}
}

// What a client asks for counts as far as its key allows; what cannot be read is refused, by
// the header's name.
func TestApplyPolicy(t *testing.T) {
	g := run(t, usual(t, "ada may-set=[priority,objectives,deadline]", "bob"), complete().roundTrip, alone(t))
	for _, x := range []struct {
		key, header, value string
		status             int
	}{
		{"ada", "X-Tandem-Priority", "interactive", 200}, {"ada", "X-Tandem-Priority", "royal", 400},
		{"ada", "X-Tandem-Deadline-Ms", "60000", 200}, {"ada", "X-Tandem-Deadline-Ms", "soon", 400},
		{"ada", "X-Tandem-Ttft-Slo-Ms", "1000", 200}, {"ada", "X-Tandem-Ttft-Slo-Ms", "0", 400}, {"bob", "X-Tandem-Ttft-Slo-Ms", "0", 200},
		{"ada", "X-Tandem-Itl-Slo-Ms", "x", 400}, {"bob", "X-Tandem-Priority", "interactive", 200},
	} {
		got := g.post(`{"model":"m","prompt":"hi"}`, append(as(x.key), x.header, x.value)...)
		if got.status != x.status || x.status == 400 && gjson.Get(got.body, "error.param").String() != x.header {
			t.Errorf("%s: %s %s: %d %s", x.key, x.header, x.value, got.status, got.body)
		}
	}
	for key, class := range map[string]string{"ada": "interactive", "bob": "interactive"} {
		want := map[string]float64{"ada": 1}[key] // bob's key may not set it
		if n := testutil.ToFloat64(g.server.metrics.tenantRequests.WithLabelValues(key, class, "ok")); n != want {
			t.Errorf("%v of %s as %s, want %v", n, key, class, want)
		}
	}
}
