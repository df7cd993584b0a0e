package serving

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/gateway"
)

// Few series name any one server, whatever it does: with 1,000 of them a gateway exposes no more than
// 40,000. All of sixteen serve, publish KV events and report their load; a series of each pair would
// name a server eight times.
func TestMetrics_SeriesOfOneServer(t *testing.T) {
	const most, servers = 40, 8
	c := newPublishingCluster(t, servers, servers, "engine", nil)
	all := func(name string) bool { return c.series(name) == servers }
	for i := 0; !all("tandem_server_prefill_seconds_count") || !all("tandem_server_decode_first_event_seconds_count"); i++ {
		if i == 400 {
			t.Fatal("some servers never serve")
		}
		a := c.post("/v1/completions", fmt.Sprintf(`{"model":%q,"stream":true,"max_tokens":4,"prompt":%q}`, testModel, fmt.Sprint(i, strings.Repeat(" of the river", 100))))
		if a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	for _, name := range []string{"tandem_engine_kv_usage_ratio", "tandem_kv_connected", "tandem_kv_silence_seconds"} {
		eventually(t, "all servers have "+name, func() bool { return c.series(name) == 2*servers })
	}
	page, largest := c.get("/metrics").body, 0
	for _, e := range slices.Concat(c.prefill, c.decode) {
		address := `"` + strings.TrimPrefix(e.URL(), "http://") + `"`
		n := 0
		for line := range strings.Lines(page) {
			if !strings.HasPrefix(line, "#") && strings.Contains(line, address) {
				n++
			}
		}
		largest = max(largest, n)
	}
	t.Logf("%d series name one server", largest)
	if largest > most || largest < 20 { // less would be another way of naming servers
		t.Errorf("%d series name one server, at most %d", largest, most)
	}
}

// Series of models that are gone are dropped: so what series name is a model that is known, or one of the labels that
// stand for none.
func TestMetrics_NameOnlyModelsThatAreKnown(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	for _, body := range []string{
		fmt.Sprintf(`{"model":%q,"prompt":"hi","max_tokens":2}`, testModel), `{"model":"made up","prompt":"hi"}`, `{"prompt":"hi"}`, `{`, fmt.Sprintf(`{"model":%q,"prompt":"hi","n":0}`, testModel),
	} {
		c.post("/v1/completions", body)
		c.post("/v1/nothing", body)
	}
	c.raw("GET", c.base+"/v1/models/made-up")
	known, named := c.node.models(), map[string]bool{}
	for line := range strings.Lines(c.get("/metrics").body) {
		if _, rest, is := strings.Cut(line, `model="`); is {
			name, _, _ := strings.Cut(rest, `"`)
			named[name] = true
			if !slices.Contains(known, name) {
				t.Errorf("%q is dropped a day later: %s", name, line)
			}
		}
	}
	for _, name := range []string{testModel, gateway.UnknownModel, gateway.NoModel} {
		if !named[name] {
			t.Errorf("no series names %q", name)
		}
	}
}

// series counts the samples on the page whose metric has the name; "" is any.
func (c *cluster) series(name string) (n int) {
	c.t.Helper()
	for line := range strings.Lines(c.get("/metrics").body) {
		if !strings.HasPrefix(line, "#") && (name == "" || strings.HasPrefix(line, name+"{")) {
			n++
		}
	}
	return n
}
