package cost

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"github.com/tandem-gateway/tandem/kvstate/cached"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/share"
)

// The cases of the choice are text files that a person can dispute: the servers
// as they are, and every alternative with its cost in milliseconds. Regenerate
// with: go test ./pd/cost -run TestChoose_Golden -rewrite
func TestChoose_Golden(t *testing.T) {
	datadriven.Walk(t, "testdata/choose", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var r Demand
			d.ScanArgs(t, "prompt", &r.PromptTokens)
			d.ScanArgs(t, "output", &r.OutputTokens)
			for name, objective := range map[string]*time.Duration{"ttft": &r.TTFT, "itl": &r.ITL, "gap": &r.Gap} {
				if d.HasArg(name) {
					var ms int
					d.ScanArgs(t, name, &ms)
					*objective = time.Duration(ms) * time.Millisecond
				}
			}
			if d.HasArg("new") {
				var percent int
				d.ScanArgs(t, "new", &r.New)
				d.ScanArgs(t, "lost-percent", &percent)
				r.LostShare = float64(percent) / 100
			}
			m, f := Default(), parseField(t, d)
			if d.HasArg("shares") {
				f.Shares = parseShares(t, d, r)
			}
			if d.HasArg("home") {
				var home string
				d.ScanArgs(t, "home", &home)
				r.Home.Prefill, r.Home.Decode, _ = strings.Cut(home, "/")
			}
			r.FirstFromPrefill, r.Exact = d.HasArg("first-from-prefill"), d.HasArg("exact")
			if d.HasArg("rule") {
				d.ScanArgs(t, "rule", (*string)(&m.Rule))
			}
			certain := r.PromptTokens
			if d.HasArg("certain") {
				d.ScanArgs(t, "certain", &certain)
			}
			m.OfferFetches(&f, r.PromptTokens, certain, toldLinks, mayAlways)
			return pricedTable(&m, r, f)
		})
	})
}

// toldLinks are links that nothing is known of.
var toldLinks = NewLinks(DefaultLinks())

func mayAlways(int, int) bool { return true }

// parseShares reads which part of requests like this one each kind of hardware is to have.
func parseShares(t *testing.T, d *datadriven.TestData, r Demand) *share.Table {
	var parts []float64
	for i := range d.CmdArgs {
		if d.CmdArgs[i].Key != "shares" {
			continue
		}
		for _, text := range d.CmdArgs[i].Vals {
			part, err := strconv.ParseFloat(text, 64)
			if err != nil {
				d.Fatalf(t, "shares: %v", err)
			}
			parts = append(parts, part)
		}
	}
	return &share.Table{Prefill: map[share.Class][]float64{share.ClassOf(r.PromptTokens, r.OutputTokens): parts}}
}

func parseField(t *testing.T, d *datadriven.TestData) Candidates {
	var f Candidates
	for line := range strings.SplitSeq(strings.TrimSpace(d.Input), "\n") {
		words := strings.Fields(line)
		if len(words) < 2 {
			d.Fatalf(t, "want: leg id [name=value ...], got %q", line)
		}
		c := Candidate{ID: words[1], Prefill: pools.Default().Prefill, Step: pools.Default().Step}
		for _, w := range words[2:] {
			setCandidate(t, d, &c, w)
		}
		switch words[0] {
		case "prefill":
			f.Prefill = append(f.Prefill, c)
		case "decode":
			f.Decode = append(f.Decode, c)
		case "pair": // decodes only what is handed to it
			c.NoAggregated = true
			f.Decode = append(f.Decode, c)
		case "alone":
			c.NoPair = true
			f.Decode = append(f.Decode, c)
		default:
			d.Fatalf(t, "unknown leg %q", words[0])
		}
	}
	for i := range f.Prefill {
		f.Prefill[i].Both = f.decodeOf(f.Prefill[i].ID, 0) >= 0
	}
	return linked(f)
}

// linked gives a field links that nothing is known of.
func linked(f Candidates) Candidates {
	f.Links = NewLinks(DefaultLinks()).Table(f.Prefill, f.Decode, linkTime)
	return f
}

func setCandidate(t *testing.T, d *datadriven.TestData, c *Candidate, word string) {
	name, value, _ := strings.Cut(word, "=")
	n, err := strconv.Atoi(value)
	switch name {
	case "queue":
		c.Queue, err = time.ParseDuration(value)
	case "ready":
		c.Ready, err = time.ParseDuration(value)
	case "queued":
		c.Queued = n
	case "cached":
		c.Cached = cached.Tokens{GPU: n, CPU: max(n, c.Cached.CPU), Disk: max(n, c.Cached.Disk)}
	case "cpu":
		c.Cached.CPU, c.Cached.Disk = n, max(n, c.Cached.Disk)
	case "disk":
		c.Cached.Disk = n
	case "running":
		c.Running = n
	case "decodes":
		c.Decodes = n
	case "remote": // tokens that a third server holds, 12.5 GB/s away
		c.Remote = Remote{Tokens: n, Latency: 0.0005, PerByte: 1 / 12.5e9}
	case "class":
		c.Class = uint64(n)
	case "kind": // of hardware: 1 is the first of shares
		c.Kind = n
	case "fetch": // tokens of a KV block
		c.FetchBlock = n
	case "piece-block":
		c.PieceBlock = n
	case "first": // tokens of a KV block
		c.FirstBlock = n
	case "protected":
		c.Protected, err = true, nil
	case "group":
		c.Group = n
	case "kvused":
		c.KVUsed = n
	case "slow": // how many times slower it prefills
		for i := range c.Prefill {
			c.Prefill[i] *= float64(n)
		}
	case "kvfree":
		c.KVFree, c.KVKnown = n, true
	case "host":
		c.Topology.Host, err = value, nil
	case "rack":
		c.Topology.Rack, err = value, nil
	case "zone":
		c.Topology.Zone, err = value, nil
	default:
		d.Fatalf(t, "unknown word %q", word)
	}
	if err != nil {
		d.Fatalf(t, "%s: %v", word, err)
	}
}

// pricedTable prints all alternatives, cheapest first, and marks the chosen one.
func pricedTable(m *Model, r Demand, f Candidates) string {
	chosen, ok := m.Choose(r, &f, rand.New(rand.NewPCG(1, 1)).IntN)
	if !ok {
		return "no alternative\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "   %-8s %-8s %9s = %9s + %9s + %9s + %9s + %6s + %11s + %15s\n", "prefill", "decode", "total ms", "queue", "prefill", "transfer", "kv room", "step", "decode cost", "delay to others")
	for _, e := range m.Explain(r, f, chosen, 1000) {
		mark, prefill := "  ", e.Prefill
		missed := ""
		if e.Misses > 0 {
			missed = fmt.Sprintf("   misses %d", e.Misses)
		}
		if e.HardwareMismatch > 0 {
			missed += fmt.Sprintf("   hardware mismatch %.2f", e.HardwareMismatch)
		}
		if e.Eviction > 0 {
			missed += fmt.Sprintf("   eviction %.2f", e.Eviction)
		}
		if e.Ready > 0 {
			missed += fmt.Sprintf("   ready in %.2f", e.Ready)
		}
		if e.FirstGap > 0 {
			missed += fmt.Sprintf("   first token %.2f", e.First)
		}
		if e.Chosen {
			mark = "->"
		}
		if prefill == "" {
			prefill = "-"
		}
		fmt.Fprintf(&b, "%s %-8s %-8s %9.2f = %9.2f + %9.2f + %9.2f + %9.2f + %6.2f + %11.2f + %15.2f%s\n", mark, prefill, e.Decode, e.Total,
			e.Queue, e.Compute, e.Transfer, e.KVRoom, e.Step, e.DecodeCost, e.DelayToOthers, missed)
	}
	return b.String()
}

// rounding of the parts of a cost to nanoseconds.
const rounding = 10 * time.Nanosecond

// idle is the most work ahead of a server that is about to be free: order's idleAhead.
const idle = 100 * time.Millisecond

// The choice is the cheapest, but for servers that are busy for too long: where the cheapest is one, a free pair goes
// before it, and before a decode server alone as well, whose streams would stand still while a prefill server is free.
func TestChoose_IsTheCheapestAlternative(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, r := randomField(t), Demand{PromptTokens: rapid.IntRange(0, 100_000).Draw(t, "prompt"), OutputTokens: rapid.IntRange(1, 2000).Draw(t, "output")}
		m := Default()
		best, ok := m.Choose(r, &f, rand.IntN)
		all := m.Alternatives(r, &f, best.Price)
		if ok != (len(all) > 0) {
			t.Fatalf("%d alternatives, chosen: %v", len(all), ok)
		}
		isTooBusy := func(a Alternative) bool { // it begins when the chosen one, which is free, has done its first decode step
			return best.Terms.Queue <= idle && a.Terms.Queue > idle && a.Terms.Queue >= best.Terms.TTFT()-rounding
		}
		cheaper := func(a, b Alternative) int {
			return cmp.Or(cmp.Compare(a.Misses, b.Misses), cmp.Compare(a.Terms.Total(), b.Terms.Total()))
		}
		goesBefore := ok && best.Prefill != "" && isTooBusy(slices.MinFunc(all, cheaper))
		for _, a := range all {
			if isTooBusy(a) || goesBefore && a.Prefill == "" {
				continue
			}
			if a.Misses < best.Misses || a.Misses == best.Misses && a.Terms.Total() < best.Terms.Total()-rounding {
				t.Fatalf("%+v is cheaper than the chosen %+v", a, best)
			}
			if a.Terms.Queue < 0 || a.Terms.Prefill < 0 || a.Terms.Transfer < 0 || a.Terms.KVRoom < 0 || a.Terms.Step <= 0 || a.Terms.DelayToOthers < 0 {
				t.Fatalf("a term is negative: %+v", a)
			}
		}
	})
}

// A prefill server that makes no pair hides none of the others from the search, wherever it begins.
func TestChoose_AServerWithoutAPairHidesNone(t *testing.T) {
	server := func(id, rack, zone string, queue time.Duration) Candidate {
		return Candidate{ID: id, Topology: Topology{Rack: rack, Zone: zone}, Queue: queue, Prefill: pools.Default().Prefill, Step: pools.Default().Step}
	}
	far, near, none, busy := server("far", "r2", "z2", 0), server("near", "", "", 2*time.Millisecond), server("none", "", "z1", 0), server("busy", "", "", 3*time.Second)
	none.NoPair, none.NoAggregated = true, true
	decode := server("d", "r1", "z1", 0)
	decode.NoAggregated = true
	f := linked(Candidates{Prefill: []Candidate{far, near, none, busy}, Decode: []Candidate{decode}})
	m := Default()
	for start := range f.Prefill {
		first := true // of the two draws, the one that says with which prefill server it begins
		best, _ := m.Choose(Demand{PromptTokens: 3000, OutputTokens: 100}, &f, func(int) int {
			defer func() { first = false }()
			if first {
				return start
			}
			return 0
		})
		if best.Prefill != "near" {
			t.Errorf("beginning with server %d: %+v", start, best)
		}
	}
}

func randomField(t *rapid.T) Candidates {
	candidate := rapid.Custom(func(t *rapid.T) Candidate {
		return Candidate{
			Prefill: pools.Default().Prefill, Step: pools.Default().Step,
			ID:       rapid.StringMatching(`[a-z]{3}`).Draw(t, "id"),
			Topology: Topology{Rack: rapid.SampledFrom([]string{"", "r1", "r2"}).Draw(t, "rack"), Zone: rapid.SampledFrom([]string{"", "z1", "z2"}).Draw(t, "zone")},
			Ready:    time.Duration(rapid.IntRange(-2000, 2000).Draw(t, "ready")) * time.Millisecond, // at once, half of the time
			Queue:    time.Duration(rapid.IntRange(0, 5000).Draw(t, "queue")) * time.Millisecond, Running: rapid.IntRange(0, 300).Draw(t, "running"),
			NoPair: rapid.IntRange(0, 9).Draw(t, "no pair") == 0, NoAggregated: rapid.Bool().Draw(t, "not alone"), Group: rapid.SampledFrom([]int{0, 0, 1}).Draw(t, "group"), KVFree: rapid.IntRange(0, 1_000_000).Draw(t, "free"), KVKnown: rapid.Bool().Draw(t, "known"),
		}
	})
	list := func(name string) []Candidate { return rapid.SliceOfN(candidate, 0, 5).Draw(t, name) }
	return linked(Candidates{Prefill: list("prefill"), Decode: list("decode")})
}

func TestChoose_EqualAlternativesShare(t *testing.T) {
	f := Candidates{Prefill: []Candidate{{ID: "p0"}, {ID: "p1"}}, Decode: []Candidate{{ID: "d0", NoAggregated: true}, {ID: "d1", NoAggregated: true}}}
	f.Links = NewLinks(DefaultLinks()).Table(f.Prefill, f.Decode, linkTime)
	tie := rand.New(rand.NewPCG(1, 2)).IntN
	counts, m := make(map[string]int), Default()
	for range 4000 {
		a, _ := m.Choose(Demand{PromptTokens: 1000, OutputTokens: 100}, &f, tie)
		counts[a.Prefill+a.Decode]++
	}
	for _, pair := range []string{"p0d0", "p0d1", "p1d0", "p1d1"} {
		if counts[pair] < 900 || counts[pair] > 1100 {
			t.Errorf("%s got %d of 4000", pair, counts[pair])
		}
	}
}

// Budget (2-core VM): <= 10 us for 4,096 pairs of unlike servers, 0 allocations.
func BenchmarkChoose64x64(b *testing.B) {
	var f Candidates
	for i := range 64 {
		c := Candidate{Prefill: pools.Default().Prefill, Step: pools.Default().Step, ID: fmt.Sprintf("s%d", i), Topology: Topology{Rack: fmt.Sprintf("r%d", i%8)}, Queue: time.Duration(i) * time.Millisecond, Running: i, KVFree: 100_000, KVKnown: true}
		f.Prefill, f.Decode = append(f.Prefill, c), append(f.Decode, c)
	}
	f = linked(f)
	m, r := Default(), Demand{PromptTokens: 4000, OutputTokens: 256}
	b.ReportAllocs()
	for b.Loop() {
		m.Choose(r, &f, rand.IntN)
	}
}

// Aggregated is the cheapest of all alternatives without a prefill server, and there is one where any
// decode server computes prompts.
func TestAggregated_IsTheCheapestWithoutAPrefillServer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, r := randomField(t), Demand{PromptTokens: rapid.IntRange(0, 100_000).Draw(t, "prompt"), OutputTokens: rapid.IntRange(1, 2000).Draw(t, "output")}
		m := Default()
		got, ok := aggregated(&m, r, &f)
		any := false
		for _, a := range m.Alternatives(r, &f, got.Price) {
			if a.Prefill != "" {
				continue
			}
			any = true
			if got.Prefill != "" || a.Misses < got.Misses || a.Misses == got.Misses && a.Terms.Total() < got.Terms.Total()-rounding {
				t.Fatalf("%+v is cheaper than %+v", a, got)
			}
		}
		if ok != any {
			t.Fatalf("there is one: %v, found: %v", any, ok)
		}
	})
}

// Budget (2-core VM): <= 10 us for 64 + 64 servers, of which all that decode hold as much of the prompt and those that
// prefill nothing; 0 allocations.
func BenchmarkOfferFetches64x64(b *testing.B) {
	var f Candidates
	for i := range 64 {
		c := Candidate{Prefill: pools.Default().Prefill, Step: pools.Default().Step, ID: fmt.Sprintf("s%d", i), Topology: Topology{Rack: fmt.Sprintf("r%d", i%8)}, FetchBlock: 16}
		f.Prefill = append(f.Prefill, c)
		c.ID, c.Cached.GPU = fmt.Sprintf("d%d", i), 20_000
		f.Decode = append(f.Decode, c)
	}
	m := Default()
	b.ReportAllocs()
	for b.Loop() {
		for i := range f.Prefill {
			f.Prefill[i].Remote = Remote{}
		}
		m.OfferFetches(&f, 24_000, 24_000, toldLinks, mayAlways)
	}
}
