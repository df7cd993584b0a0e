package cost

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/order"
)

// randomFleet is a large fleet whose servers differ in all that prices depend on; some step together, some do both, and
// some may not be chosen.
func randomFleet(rng *rand.Rand) *Candidates {
	f := largeFleet(1 + rng.IntN(40))
	for _, servers := range [][]Candidate{f.Prefill, f.Decode} {
		for i := range servers {
			c := &servers[i]
			c.Queue, c.Queued, c.Running, c.KVUsed = time.Duration(rng.IntN(3e8)), rng.IntN(5), rng.IntN(90), rng.IntN(200_000)
			c.Cached.GPU, c.Excluded, c.Group = 16*rng.IntN(300), rng.IntN(10) == 0, rng.IntN(4)
			c.Moving, c.NoPair, c.NoAggregated = time.Duration(rng.IntN(1e7)), rng.IntN(12) == 0, rng.IntN(12) == 0
		}
	}
	for i := range f.Prefill {
		f.Prefill[i].Both, f.Decode[i].Both = i%3 == 0, i%3 == 0
		f.Awaiting = append(f.Awaiting, rng.IntN(3))
	}
	f.AverageAwaiting, f.StreamDiscount, f.KVPrice = 0.7, 0.2, 1e-7
	return f
}

// aggregated is the cheapest way to have decode alone run a request.
func aggregated(m *Model, r Demand, f *Candidates) (Alternative, bool) {
	review := m.Review(r, f, &Alternative{Prefill: "another way"})
	return review.Alone, review.MayBeAlone
}

// A shortlist has the chosen servers, and the others that the choice was likeliest to fall on; and what is priced again
// among them costs what it costs among all.
func TestShortlist_IsPricedAsAllAre(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	m := Default()
	shortened := 0
	for n := range 400 {
		f := randomFleet(rng)
		r := Demand{PromptTokens: 200 + rng.IntN(8000), OutputTokens: 1 + rng.IntN(500), TTFT: time.Duration(rng.IntN(2)) * time.Second}
		all := m.Alternatives(r, f, 1)
		if len(all) == 0 {
			continue
		}
		chosen := all[rng.IntN(len(all))] // as a turn, or a tie, may have it
		few := m.Review(r, f, &chosen).Few
		if len(few.Prefill) > Listed || len(few.Decode) > Listed {
			t.Fatalf("%d and %d servers are listed", len(few.Prefill), len(few.Decode))
		}
		if prefills, decodes := few.Count(); prefills != len(f.Prefill) || decodes != len(f.Decode) {
			t.Fatalf("the choice was among %d and %d servers, and %d and %d are said", len(f.Prefill), len(f.Decode), prefills, decodes)
		}
		if !f.AreFew() {
			shortened++
		}
		among := map[string]Terms{}
		for _, a := range m.Alternatives(r, f, chosen.Price) {
			among[a.Prefill+" "+a.Decode] = a.Terms
		}
		var best Alternative
		for i, a := range m.Alternatives(r, &few, chosen.Price) {
			if want := among[a.Prefill+" "+a.Decode]; a.Terms != want {
				t.Fatalf("fleet %d: %s %s costs %+v, among all %+v", n, a.Prefill, a.Decode, a.Terms, want)
			}
			if i == 0 || a.before(&best) {
				best = a
			}
		}
		if IndexOf(few.Decode, chosen.Decode) < 0 || chosen.Prefill != "" && IndexOf(few.Prefill, chosen.Prefill) < 0 {
			t.Fatalf("fleet %d: %s and %s were chosen, and are not listed", n, chosen.Prefill, chosen.Decode)
		}
		alone, mayBeAlone := aggregated(&m, r, f)
		if least, is := aggregated(&m, r, &few); is != mayBeAlone || is && least.Terms != alone.Terms {
			t.Fatalf("fleet %d: alone it costs %+v, among all %+v", n, least.Terms, alone.Terms)
		}
	}
	if shortened < 200 {
		t.Errorf("only %d fleets were shortened", shortened)
	}
}

// What servers cost any request, and where it came alone what they cost just this one, is not worked out again for the
// review of its choice.
func TestReview_IsTheSameOfWhatIsPricedAlready(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	m := Default()
	for n := range 200 {
		f := randomFleet(rng)
		f.Awaiting = nil
		for i := range f.Prefill {
			f.Prefill[i].Rest, f.Prefill[i].Cached.Pending = time.Duration(rng.IntN(3e8)), 2*WorthFollowing*rng.IntN(2)
			f.Decode[i].KVFree, f.Decode[i].KVKnown = rng.IntN(20_000), true
		}
		r := Demand{PromptTokens: 200 + rng.IntN(8000), OutputTokens: 1 + rng.IntN(500), TTFT: time.Duration(rng.IntN(2)) * time.Second, Waited: time.Millisecond}
		var servers order.Servers
		ticket := order.Ticket{Arrived: time.Second}
		m.PriceServers(f, &servers)
		servers.Gate, servers.Now, servers.Start = true, ticket.Arrived+r.Waited, order.Pair{Prefill: rng.IntN(len(f.Prefill)), Decode: rng.IntN(len(f.Decode))}
		m.PriceRequest(r, f, &ticket)
		turn, ok := order.New(order.DefaultConfig()).NextAlone(&ticket, &servers)
		if !ok {
			continue
		}
		f.RecordOrder(&servers, new(Room))
		servers.Decode[rng.IntN(len(f.Decode))].Excluded = true // an order keeps it for another request
		chosen := f.Alternative(&servers, &ticket, turn.Pair, turn.Price)
		want := m.Review(r, f, &chosen)
		if got := f.Review(&servers, &ticket, &chosen); !reflect.DeepEqual(got, want) {
			t.Fatalf("fleet %d: %+v, priced again %+v", n, got, want)
		}
	}
}

// The servers next to the best are listed, whatever else there is.
func TestShortlist_HasTheCheapest(t *testing.T) {
	f, m := largeFleet(64), Default()
	for i := range 5 {
		for _, servers := range [][]Candidate{f.Prefill, f.Decode} {
			servers[10*i+7].Queue, servers[10*i+7].Running = 0, i
		}
	}
	r := Demand{PromptTokens: 4000, OutputTokens: 100}
	chosen, _ := m.Choose(r, f, rand.New(rand.NewPCG(1, 2)).IntN)
	few := m.Review(r, f, &chosen).Few
	for i := range 5 {
		id := fmt.Sprintf("10.0.0.%d:8000", 10*i+7)
		if IndexOf(few.Prefill, id) < 0 || IndexOf(few.Decode, id) < 0 {
			t.Errorf("%s is not listed", id)
		}
	}
}
