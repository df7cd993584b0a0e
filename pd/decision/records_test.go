package decision

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pools"
)

var arrived = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// The decisions over a large fleet take no more memory than they may, and the chosen pair of an old
// one can still be explained.
func TestRecords_IsBoundedInBytes(t *testing.T) {
	f := cost.Candidates{}
	for i := range 256 {
		c := cost.Candidate{ID: fmt.Sprint("p", i), Prefill: pools.Default().Prefill, Step: pools.Default().Step}
		f.Prefill = append(f.Prefill, c)
		c.ID, c.Running = fmt.Sprint("d", i), i
		f.Decode = append(f.Decode, c)
	}
	f.Links = cost.NewLinks(cost.DefaultLinks()).Table(f.Prefill, f.Decode, arrived)
	m, r := cost.Default(), cost.Demand{PromptTokens: 8000, OutputTokens: 100}
	chosen, ok := m.Choose(r, &f, func(int) int { return 0 })
	if !ok || chosen.Prefill == "" {
		t.Fatalf("chosen: %+v", chosen)
	}
	const bytes = 20 << 20
	d := NewRecords(time.Hour, bytes)
	for i := range 1500 {
		d.Add(Record{RequestID: fmt.Sprint(i), Choices: []Choice{{Demand: r, Candidates: f, Chosen: chosen}}})
	}
	if counted := d.count(); counted > bytes || counted != d.used || len(d.kept) != 1500 {
		t.Errorf("%d bytes are remembered, counted as %d, in %d decisions", counted, d.used, len(d.kept))
	}
	newest, _ := d.Find("1499")
	oldest, found := d.Find("0")
	if !found || len(newest.Choices[0].Candidates.Decode) != 256 {
		t.Fatalf("found %v, %d decode servers of the newest", found, len(newest.Choices[0].Candidates.Decode))
	}
	explain := func(c Choice) []cost.Explained { return m.Explain(c.Demand, c.Candidates, c.Chosen, 1) }
	want, got := explain(newest.Choices[0]), explain(oldest.Choices[0])
	if len(got) == 0 || got[0] != want[0] {
		t.Errorf("explained %+v\n     want %+v", got, want)
	}
}

// What an attempt took is written down when its stream has ended, beside what others have read
// already; it never reaches another request, also of the same name, nor one that is forgotten.
func TestRecords_IsCompletedWhenAStreamEnds(t *testing.T) {
	d := NewRecords(time.Hour, 1<<20)
	other := d.Add(Record{RequestID: "r", At: arrived, Choices: []Choice{{}}})
	number := d.Add(Record{RequestID: "r", At: arrived, Choices: []Choice{{}, {}}})
	before, _ := d.Find("r")
	m := Measured{FirstToken: 5}
	d.Complete(number, 1, m, "broken")
	after, _ := d.Find("r")
	if before.Choices[1].Measured != (Measured{}) || after.Choices[1].Measured != m || after.Choices[1].Outcome != "broken" || after.Choices[0].Measured != (Measured{}) {
		t.Errorf("before %+v\nafter %+v", before.Choices, after.Choices)
	}
	d.Complete(other, 0, m, "another's")
	d.Complete(number, 2, m, "of no attempt")
	d.Complete(number+1, 0, m, "nobody's")
	d.Complete(0, 0, m, "nobody's")
	if last, _ := d.Find("r"); last.Choices[0].Measured != (Measured{}) || last.Choices[0].Outcome != "" || len(last.Choices) != 2 {
		t.Errorf("%+v", last.Choices)
	}
	d.forgetOldestLocked()
	d.Complete(other, 0, m, "nobody's any more")
	if all := d.Newest(9); len(all) != 1 || all[0].Choices[0].Outcome != "" {
		t.Errorf("%+v", all)
	}
}

// The newest decision keeps all its servers, however many they are; older ones are forgotten where
// even what was chosen is too much.
func TestRecords_KeepsTheNewestWhole(t *testing.T) {
	d := NewRecords(time.Hour, 4096)
	large := cost.Candidates{Decode: make([]cost.Candidate, 1000)}
	for i := range 9 {
		d.Add(Record{RequestID: fmt.Sprint(i), Choices: []Choice{{Candidates: large}}})
		newest, _ := d.Find(fmt.Sprint(i))
		if n := len(newest.Choices[0].Candidates.Decode); n != 1000 {
			t.Errorf("of decision %d, the newest, %d servers are kept", i, n)
		}
	}
	if _, found := d.Find("0"); found || len(d.kept) != 1 {
		t.Errorf("%d decisions are kept beside one that takes all the memory", len(d.kept)-1)
	}
	for i := range 9 {
		d.Add(Record{RequestID: fmt.Sprint("small ", i), Choices: []Choice{{}}})
	}
	if counted := d.count(); counted != d.used || counted > 4096 || len(d.kept) < 2 {
		t.Errorf("%d bytes in %d decisions, counted as %d", counted, len(d.kept), d.used)
	}
}

// A decision is forgotten when its time is over, whether others come or not.
func TestRecords_ForgetsWithTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewRecords(time.Minute, 1<<20)
		d.Add(Record{RequestID: "a", At: time.Now()})
		time.Sleep(40 * time.Second)
		d.Add(Record{RequestID: "b", At: time.Now()})
		time.Sleep(20 * time.Second)
		if _, found := d.Find("a"); !found {
			t.Error("it is forgotten before its time")
		}
		time.Sleep(time.Second)
		if _, found := d.Find("a"); found {
			t.Error("it is remembered after its time")
		}
		time.Sleep(40 * time.Second)
		if newest := d.Newest(9); len(newest) != 0 || d.used != 0 {
			t.Errorf("%d are remembered in %d bytes", len(newest), d.used)
		}
	})
}

// The newest come first, as many as asked for, and none from before; by its name a request is found
// as it was decided on last.
func TestRecords_ListsTheNewest(t *testing.T) {
	d := NewRecords(time.Hour, 1<<20)
	for i, id := range []string{"a", "b", "c", "a"} {
		d.Add(Record{RequestID: id, At: arrived.Add(time.Duration(i) * time.Second), Outcome: fmt.Sprint(i)})
	}
	for _, x := range []struct {
		after time.Duration
		limit int
		want  string
	}{{-1, 9, "3210"}, {-1, 2, "32"}, {time.Second, 9, "32"}, {time.Hour, 9, ""}} {
		got := ""
		for _, r := range d.After(arrived.Add(x.after), x.limit) {
			got += r.Outcome
		}
		if got != x.want {
			t.Errorf("after %v at most %d: %q, want %q", x.after, x.limit, got, x.want)
		}
	}
	if got, found := d.Find("a"); !found || got.Outcome != "3" {
		t.Errorf("of two decisions on one request %+v is found", got)
	}
}

// count is what the decisions take, counted anew.
func (d *Records) count() (bytes int) {
	for i, r := range d.kept {
		if whole, is := d.whole[d.first+Number(i)]; is {
			bytes += whole.bytes()
			continue
		}
		bytes += packedBytes + int(r.at.to-r.at.from)
	}
	return bytes
}

// Requests end, are looked up and come in at the same time.
func TestRecords_IsUsedByManyAtOnce(t *testing.T) {
	d := NewRecords(time.Hour, 1<<20)
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			for i := range 200 {
				id := fmt.Sprint(worker, " ", i)
				number := d.Add(Record{RequestID: id, At: arrived, Choices: []Choice{{}}})
				d.Complete(number, 0, Measured{FirstToken: 1}, "")
				if found, ok := d.Find(id); ok && found.Choices[0].Measured.FirstToken > 1 {
					t.Errorf("%+v", found)
				}
			}
		})
	}
	all.Wait()
}

// A stream that broke behind its head was not served, whatever was said when it was begun.
func TestRecord_Result(t *testing.T) {
	for name, c := range map[string]struct {
		outcome  string
		attempts []string
		want     string
	}{
		"served":                 {Served, []string{""}, Served},
		"served by the second":   {Served, []string{"no connection", ""}, Served},
		"broken":                 {Served, []string{"", "stream broke: unexpected EOF"}, "stream broke: unexpected EOF"},
		"refused":                {"no server", nil, "no server"},
		"failed":                 {"status 400", []string{"status 400"}, "status 400"},
		"picked":                 {Picked, []string{""}, Picked},
		"picked and broken":      {Picked, []string{"stream broke: unexpected EOF"}, "stream broke: unexpected EOF"},
		"none was chosen for it": {Served, nil, Served},
	} {
		r := Record{Outcome: c.outcome}
		for _, outcome := range c.attempts {
			r.Choices = append(r.Choices, Choice{Outcome: outcome})
		}
		if got := r.Result(); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// What is known of a request now takes the place of what was remembered of it, whether either is packed; what was
// forgotten is remembered anew.
func TestRecords_Replace(t *testing.T) {
	d := NewRecords(time.Hour, 1<<20)
	for _, ended := range []bool{true, false} {
		first := d.Add(Record{RequestID: "a", At: time.Now(), Choices: []Choice{{}}, Ended: ended})
		other := d.Add(Record{RequestID: "b", At: time.Now()})
		for _, again := range []bool{false, true} {
			if n := d.Replace(first, Record{RequestID: "a", At: time.Now(), Choices: []Choice{{Outcome: "broke"}, {}}, Outcome: Served, Ended: again}); n != first {
				t.Errorf("it has another number, %d", n)
			}
			d.Complete(first, 1, Measured{Prefill: time.Second}, "")
			got, _ := d.Find("a")
			if len(got.Choices) != 2 || got.Choices[0].Outcome != "broke" || got.Choices[1].Measured.Prefill != time.Second || got.Outcome != Served {
				t.Errorf("it was packed %v, and is now %v: %+v", ended, again, got)
			}
		}
		if n := d.Replace(other+100, Record{RequestID: "c", At: time.Now()}); n != other+1 {
			t.Errorf("a forgotten one has the number %d", n)
		}
	}
	if all := d.Newest(9); len(all) != 6 {
		t.Errorf("%d are remembered", len(all))
	}
}

// The caller uses its memory of choices again.
func TestRecords_KeepNoChoicesOfTheCallers(t *testing.T) {
	for _, ended := range []bool{true, false} {
		d := NewRecords(time.Hour, 1<<20)
		choices := []Choice{{Outcome: "first"}}
		number := d.Add(Record{RequestID: "a", Choices: choices, Ended: ended})
		choices[0].Outcome = "second"
		d.Replace(number, Record{RequestID: "a", Choices: choices, Ended: ended})
		choices[0] = Choice{}
		if got, _ := d.Find("a"); got.Choices[0].Outcome != "second" {
			t.Errorf("ended %v: %+v", ended, got.Choices[0])
		}
	}
}

// Choices under way keep their servers as far as there is memory for them, and then the chosen ones. What one had is
// there for the next.
func TestRecords_HoldsChoicesUnderWayWithinItsBytes(t *testing.T) {
	choice := func() *Choice {
		f := cost.Candidates{Prefill: []cost.Candidate{{ID: "p0"}, {ID: "p1"}}, Decode: []cost.Candidate{{ID: "d0"}, {ID: "d1"}}}
		f.Links = cost.NewLinks(cost.DefaultLinks()).Table(f.Prefill, f.Decode, arrived)
		return &Choice{Candidates: f, Chosen: cost.Alternative{Prefill: "p1", Decode: "d0"}}
	}
	d := NewRecords(time.Hour, 4*candidateBytes+4*linkBytes)
	first, second := choice(), choice()
	held := d.Hold(first)
	if n := d.Hold(second); held == 0 || n != 0 {
		t.Errorf("%d and %d bytes are held", held, n)
	}
	if len(first.Candidates.Prefill) != 2 || len(second.Candidates.Prefill) != 1 || second.Candidates.Prefill[0].ID != "p1" || second.Candidates.Decode[0].ID != "d0" {
		t.Errorf("the first keeps %+v, the second %+v", first.Candidates.Prefill, second.Candidates)
	}
	d.LetGo(held)
	if again := choice(); d.Hold(again) != held || len(again.Candidates.Decode) != 2 {
		t.Errorf("behind the first %+v", again.Candidates.Decode)
	}
}
