package live

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/history"
)

// reported is what a gateway reports, as another one reads it.
func reported(t *testing.T, r *Report) *Report {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	got := new(Report)
	if err := json.Unmarshal(text, got); err != nil {
		t.Fatal(err)
	}
	return got
}

// merged is the state of a gateway a and one b whose clock is right.
func merged(t *testing.T, a, b *Report) State {
	t.Helper()
	a.At, b.At, a.Gateway.Replica, b.Gateway.Replica = noon, noon, "a", "b"
	for _, r := range []*Report{a, b} {
		if r.History == nil {
			r.History = history.NewCounts(noon)
		}
	}
	return merge("", a, []answer{{replica: "b", report: reported(t, b)}})
}

func number[T any](v T) *T { return &v }

// What two gateways have on a server is added up, however late each knows of the other; of state and
// breaker the worst is shown, and who sees what where they differ. A server that one alone knows is
// there too.
func TestMerge_Servers(t *testing.T) {
	leg := func(breaker string, requests, own int) *Leg {
		why := ""
		if breaker == "open" {
			why = "status 500"
		}
		return &Leg{breaker, why, requests, own, 10 * requests, float64(requests)}
	}
	s := merged(t, &Report{Servers: []Server{
		{ID: "p1", Role: "prefill", State: "alive", Prefill: leg("closed", 5, 3), Running: number(1.0)},
		{ID: "d1", Role: "decode", State: "alive", Decode: leg("closed", 3, 3)},
	}}, &Report{Servers: []Server{
		{ID: "d1", Role: "decode", State: "down", Reason: "connection refused", Decode: leg("open", 2, 2), KVUsed: number(0.5), Draining: true},
		{ID: "p0", Role: "prefill", State: "alive", Prefill: leg("closed", 1, 1)},
		{ID: "p1", Role: "prefill", State: "alive", Prefill: leg("closed", 4, 1), Running: number(9.0)},
	}})
	var order []string
	for _, server := range s.Servers {
		order = append(order, server.ID)
	}
	if got := strings.Join(order, " "); got != "p0 p1 d1" {
		t.Fatalf("servers %s", got)
	}
	p0, p1, d1 := s.Servers[0], s.Servers[1], s.Servers[2]
	if p0.Prefill.Own != 1 || *p1.Prefill != (Leg{"closed", "", 5, 4, 50, 5}) || *p1.Running != 1 || p1.Views != nil {
		t.Errorf("p1 %+v %+v", p1, p1.Prefill)
	}
	if d1.State != "down" || d1.Reason != "connection refused" || !d1.Draining || *d1.KVUsed != 0.5 || *d1.Decode != (Leg{"open", "status 500", 5, 5, 30, 3}) {
		t.Errorf("d1 %+v %+v", d1, d1.Decode)
	}
	if want := []View{{"a", "alive", "closed"}, {"b", "down", "open"}}; !slices.Equal(d1.Views, want) {
		t.Errorf("d1 is seen %+v", d1.Views)
	}
}

// The transfers of a pair are added up, whatever place its servers have in a report: the measured
// slowness is the geometric mean over all of them, what it is taken for that of the gateway that
// fears most. Places that are none are not looked up.
func TestMerge_Links(t *testing.T) {
	at := noon.Add(-time.Minute)
	s := merged(t, &Report{
		Servers: []Server{{ID: "p1", Role: "prefill"}, {ID: "d1", Role: "decode"}},
		Links: Links{Classes: []LinkClass{{Distance: "rack"}}, Pairs: []LinkPair{
			{0, 1, Link{Distance: "rack", Transfers: 3, Moving: 1, Measured: 1, Slower: 1.2, Blamed: "pair"}}}},
	}, &Report{
		Servers: []Server{{ID: "d1", Role: "decode"}, {ID: "p0", Role: "prefill"}, {ID: "p1", Role: "prefill"}},
		Links: Links{Classes: []LinkClass{{Distance: "far"}}, Pairs: []LinkPair{
			{1, 0, Link{Slower: 9, FailedAt: &at}},
			{2, 0, Link{Distance: "rack", Transfers: 1, Moving: 1, Measured: 16, Slower: 4, Blamed: "prefill", FailedAt: &at}},
			{3, 0, Link{Slower: 1}}, {0, -1, Link{Slower: 1}}}},
	})
	got := ""
	for _, p := range s.Links.Pairs {
		got += fmt.Sprintf("%s %s %s n=%d moving=%d %.3g %.3g %s %v, ", s.Servers[p.Prefill].ID, s.Servers[p.Decode].ID, p.Distance, p.Transfers, p.Moving, p.Measured, p.Slower, p.Blamed, p.FailedAt != nil)
	}
	if want := "p0 d1  n=0 moving=0 0 9  true, p1 d1 rack n=4 moving=2 2 4 prefill true, "; got != want {
		t.Errorf("pairs %s\nwant  %s", got, want)
	}
	if s.Links.Classes[0].Distance != "rack" {
		t.Errorf("classes %+v", s.Links.Classes)
	}
	list := s.list()
	if len(list.Pairs) != 2 || list.Pairs[1].Prefill != "p1" || list.Pairs[1].Decode != "d1" || list.Pairs[1].Transfers != 4 {
		t.Errorf("by name %+v", list.Pairs)
	}
}

// Times are those that one gateway would show that had served everything: percentiles are of all
// requests, not the mean of each gateway's. Each gateway's own minute stands beside it, of one whose
// clock is wrong too.
func TestMerge_Times(t *testing.T) {
	a, b := history.New(), history.New()
	for range 99 {
		a.Model("m", noon).RecordFirst(history.Parts{Prefill: 10 * time.Millisecond}, noon)
	}
	wrong := noon.Add(-time.Hour) // the clock of b
	for range 11 {
		b.Model("other", wrong).RecordFirst(history.Parts{Transfer: time.Second}, wrong)
	}
	s := merge("", &Report{At: noon, Gateway: Gateway{Replica: "a"}, History: a.Counts("", noon), Models: []ModelCounts{{history.Others, a.Counts("m", noon).Lately()}, {"m", a.Counts("m", noon).Lately()}}},
		[]answer{{replica: "b", behind: time.Hour, report: &Report{At: wrong, Gateway: Gateway{Replica: "b"}, History: b.Counts("", wrong), Models: []ModelCounts{{"other", b.Counts("other", wrong).Lately()}, {"none", nil}}}}})
	all := s.History.Lately
	if all.First != 110 || all.TTFT50 > 12 || all.TTFT99 < 900 || all.Parts.Prefill != 9 || all.Parts.Transfer != 100 {
		t.Errorf("all %+v", all)
	}
	if of := s.Gateways[1].Lately; s.Gateways[0].Lately.TTFT99 > 13 || of.First != 11 || of.TTFT50 < 900 {
		t.Errorf("b %+v", of)
	}
	names := ""
	for _, m := range s.Models {
		names += fmt.Sprint(m.ID, " ", m.First, ", ")
	}
	if names != "m 99, none 0, other 11, (other models) 99, " {
		t.Errorf("models %s", names)
	}
}

// A rate is over the time that was counted: of a minute whose last step is not over less than sixty seconds,
// of gateways that are younger the age of the oldest, and of one that just began a second.
func TestMerge_SecondsThatWereCounted(t *testing.T) {
	now := noon.Add(7 * time.Second)
	report := func(age time.Duration) *Report {
		return &Report{At: now, Gateway: Gateway{Since: now.Add(-age)}, History: history.NewCounts(now)}
	}
	for _, x := range []struct {
		own, other time.Duration
		want       []float64 // of the own, of the other, of all
	}{
		{time.Hour, time.Hour, []float64{57, 57, 57}},
		{12 * time.Second, 30 * time.Second, []float64{12, 30, 30}},
		{time.Millisecond, time.Millisecond, []float64{1, 1, 1}},
		{-time.Hour, -time.Hour, []float64{57, 57, 57}}, // its clock was set back
	} {
		s := merge("", report(x.own), []answer{{replica: "b", report: reported(t, report(x.other))}})
		if got := []float64{s.Gateways[0].Lately.Seconds, s.Gateways[1].Lately.Seconds, s.History.Lately.Seconds}; !slices.Equal(got, x.want) {
			t.Errorf("gateways of %v and %v: %v, want %v", x.own, x.other, got, x.want)
		}
	}
	old := merge("", &Report{At: now, History: history.NewCounts(now)}, nil) // an earlier version
	if got := old.History.Lately.Seconds; got != 57 {
		t.Errorf("of a gateway that does not say when it began: %v", got)
	}
}

// The newest decisions of all are shown, each with its gateway; what is wanted of a pool by a gateway
// that knows it now counts more than what one knew; one that did not answer is named with its reason.
func TestMerge_DecisionsPoolsAndSilentGateways(t *testing.T) {
	decisions := func(first time.Duration) (all []Decision) {
		for i := range 20 {
			all = append(all, Decision{At: noon.Add(-first - time.Duration(i)*time.Second)})
		}
		return all
	}
	wanted := []int{0, 1, 2, 3}
	own := &Report{At: noon, Gateway: Gateway{Replica: "b", Waiting: 3}, Decisions: decisions(0), Scaling: []Pool{{Model: "m", Role: "prefill", Wanted: &wanted[1], Stale: true}, {Model: "m", Role: "decode", Wanted: &wanted[1]}, {Model: "o", Role: "decode"}}}
	other := &Report{At: noon, Gateway: Gateway{Replica: "a", Waiting: 4}, Decisions: decisions(500 * time.Millisecond), Scaling: []Pool{{Model: "m", Role: "prefill", Wanted: &wanted[2]}, {Model: "m", Role: "decode", Wanted: &wanted[2]}, {Model: "n", Role: "decode", Wanted: &wanted[3]}}}
	s := merge("", own, []answer{{replica: "c", silent: "connection refused"}, {replica: "a", report: other}})
	got := ""
	for _, d := range s.Decisions {
		got += d.Gateway
	}
	if got != strings.Repeat("ba", 12) {
		t.Errorf("decisions of %s", got)
	}
	got = ""
	for _, p := range s.Scaling {
		got += p.Model + p.Role
		if p.Wanted != nil {
			got += fmt.Sprint(*p.Wanted)
		}
		got += " "
	}
	if got != "mprefill2 mdecode1 odecode ndecode3 " {
		t.Errorf("wanted %s", got)
	}
	if len(s.Gateways) != 3 || s.Gateway.Replica != "b" || s.Gateways[1].Waiting != 3 || s.Gateways[2] != (Gateway{Replica: "c", Silent: "connection refused"}) {
		t.Errorf("gateways %+v", s.Gateways)
	}
	if list := s.list(); len(list.Silent) != 1 || list.Silent["c"] != "connection refused" {
		t.Errorf("silent %v", list.Silent)
	}
}
