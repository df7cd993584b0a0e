package predict

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
)

var testTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func answerOf(model, tenant string, class int) Answer {
	return Answer{Model: model, Tenant: tenant, Class: class, Tokens: UnknownOutput}
}

// ends lets n answers of some length end.
func ends(o *Outputs, a Answer, tokens, n int) {
	for range n {
		o.Observe(a, tokens, testTime)
	}
}

func TestOutputs_EachLevelCountsAsFarAsItHasShown(t *testing.T) {
	o := NewOutputs()
	expect := func(what string, a Answer, want int) {
		t.Helper()
		if got := o.Expect(a); math.Abs(float64(got)/float64(want)-1) > 0.06 {
			t.Errorf("%s: %d tokens expected, want about %d", what, got, want)
		}
	}
	expect("nothing is known", answerOf("m", "a", 0), UnknownOutput)
	ends(o, answerOf("m", "a", 0), 40, 100)
	expect("a tenant", answerOf("m", "a", 0), 40)
	expect("another tenant is like its class", answerOf("m", "b", 0), 41)
	expect("another class is like its model", answerOf("m", "a", 1), 48)
	expect("another model is unknown", answerOf("other", "a", 0), UnknownOutput)
	ends(o, answerOf("m", "long", 0), 2000, 4)
	expect("four answers count half", answerOf("m", "long", 0), 1070)
	ends(o, answerOf("m", "a", 0), 400, 300)
	expect("what it was before is forgotten", answerOf("m", "a", 0), 400)
}

func TestOutputs_BoundsAreKept(t *testing.T) {
	o := NewOutputs()
	ends(o, answerOf("m", "", 0), 500, 100)
	bounded := answerOf("m", "", 0)
	bounded.Max, bounded.Tokens = 10, 10
	elsewhere := answerOf("m", "", 0) // its bound stands in a field that only its API knows
	elsewhere.Tokens = 20
	none := answerOf("m", "", 0)
	none.Tokens = 0
	for want, req := range map[int]Answer{10: bounded, 20: elsewhere, 0: none} {
		if got := o.Expect(req); got != want {
			t.Errorf("%d tokens expected, want %d", got, want)
		}
	}
	for range 200 { // cut off: they would have been longer
		o.Observe(bounded, 10, testTime)
	}
	if got := o.Expect(answerOf("m", "", 0)); got < 450 {
		t.Errorf("answers that were cut off at 10 tokens are taken for short: %d expected", got)
	}
	for range 200 { // these ended by themselves
		o.Observe(bounded, 5, testTime)
	}
	if got := o.Expect(answerOf("m", "", 0)); got > 100 {
		t.Errorf("%d tokens expected of answers of 5", got)
	}
}

// What is predicted is better than what is assumed.
func TestOutputs_PredictionsBeatTheAssumption(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	o := NewOutputs()
	var learned, assumed float64
	for range 3000 {
		tenant := r.IntN(5)
		req := answerOf("m", fmt.Sprint("t", tenant), 0)
		tokens := 1 + int(float64(20*int(math.Pow(3, float64(tenant))))*math.Exp(0.4*r.NormFloat64()))
		learned += math.Abs(math.Log(float64(o.Expect(req)) / float64(tokens)))
		assumed += math.Abs(math.Log(UnknownOutput / float64(tokens)))
		o.Observe(req, tokens, testTime)
	}
	t.Logf("off by a factor of %.2f, the assumption by %.2f", math.Exp(learned/3000), math.Exp(assumed/3000))
	if learned > 0.4*assumed {
		t.Errorf("off by %.2f, the assumption by %.2f (logarithms)", learned/3000, assumed/3000)
	}
}

func TestOutputs_TenantsAreBounded(t *testing.T) {
	o := NewOutputs()
	for i := range 2 * maxKeys {
		o.Observe(answerOf("m", fmt.Sprint("t", i), 0), 50, testTime)
	}
	if len(o.means) != maxKeys {
		t.Errorf("%d means", len(o.means))
	}
	if got := o.Expect(answerOf("m", "new", 0)); got > 60 {
		t.Errorf("one without room is not like its class: %d tokens expected", got)
	}
	o.Observe(answerOf("m", "late", 0), 900, testTime.Add(2*stale))
	if o.means[outputKey{"m", 1, "late"}] == nil {
		t.Error("the stale do not make room")
	}
	if n := len(o.Records(testTime.Add(2 * stale))); n > maxRecords || n == 0 {
		t.Errorf("%d means are told", n)
	}
}

func TestOutputs_ReplicasReportToEachOther(t *testing.T) {
	a, b, fresh := NewOutputs(), NewOutputs(), NewOutputs()
	req := answerOf("m", "a", 0)
	ends(b, req, 300, 100)
	var sync OutputSync
	first := true
	tell := func() {
		records := a.Records(testTime)
		if !first {
			sync.MarkNew(records)
		}
		first = false
		sync.TakeIn(b, records, testTime)
	}
	tell()
	ends(a, req, 50, 100)
	tell()
	tell() // said again it is no news
	if got := b.Expect(req); got > 60 || b.means[req.levels()[2]].count != 100 {
		t.Errorf("%d tokens expected after a hundred of 50 elsewhere", got)
	}
	new(OutputSync).TakeIn(fresh, a.Records(testTime), testTime)
	if got := fresh.Expect(req); got > 70 {
		t.Errorf("one that starts expects %d tokens", got)
	}
	for _, told := range []OutputRecord{{Sum: -1}, {Tokens: math.NaN()}, {Known: 1e9}} {
		if told.valid() {
			t.Errorf("%+v passes", told)
		}
	}
}

// A replica may tell of answers that neither it nor any other has seen.
func TestOutputs_NothingIsLearnedFromNothing(t *testing.T) {
	o, req := NewOutputs(), answerOf("m", "a", 0)
	o.receive(nil, OutputRecord{outputKey: outputKey{Model: "m"}}, testTime)
	o.receive(&OutputRecord{}, OutputRecord{outputKey: outputKey{Model: "m", Class: 1}}, testTime)
	if got := o.Expect(req); got != UnknownOutput {
		t.Errorf("%d tokens expected", got)
	}
	if told := o.Records(testTime); len(told) != 0 {
		t.Errorf("it tells others %+v", told)
	}
	ends(o, req, 40, 100)
	if got := o.Expect(req); got > 60 {
		t.Errorf("%d tokens expected after a hundred of 40", got)
	}
}

// Of what a replica reports again only the difference is news; one whose counts are smaller than
// before has started anew, and all that it has counted since is.
func TestOutputSync_OnlyTheDifferenceIsNews(t *testing.T) {
	key := outputKey{Model: "m"}
	o := NewOutputs()
	var sync OutputSync
	for _, c := range []struct {
		count       uint64
		sum, answer float64 // the mean length of the news
		known       float64 // answers, with it
	}{
		{10, 1000, 100, 3}, // the first time: what it believes
		{12, 1400, 200, 5},
		{12, 1400, 0, 5},
		{1, 50, 50, 6}, // it has started anew
		{4, 350, 100, 9},
	} {
		before := o.means[key]
		want := c.answer
		if before != nil {
			want = (before.tokens*before.answers + c.answer*(c.known-before.answers)) / c.known
		}
		sync.TakeIn(o, []OutputRecord{{outputKey: key, Count: c.count, Sum: c.sum, Tokens: 100, Known: 3}}, testTime)
		if m := o.means[key]; m.answers != c.known || math.Abs(m.tokens-want) > 1e-9 {
			t.Errorf("of %d answers reported %v of %v tokens are believed, want %v of %v", c.count, m.answers, m.tokens, c.known, want)
		}
	}
}

// What is kept of a replica's reports is bounded, whatever tenants it names.
func TestOutputSync_IsBounded(t *testing.T) {
	var sync OutputSync
	for i := range 8*maxRecords + 2 {
		sync.TakeIn(NewOutputs(), []OutputRecord{{outputKey: outputKey{Model: "m", Class: 1, Tenant: fmt.Sprint(i)}}}, testTime)
		want := i + 1
		if i == 8*maxRecords+1 { // one too many was there before it
			want = 1
		}
		if len(sync.records) != want {
			t.Fatalf("after %d reports %d records are kept", i+1, len(sync.records))
		}
	}
	for _, n := range []int{1023, 1024} {
		if r := (OutputRecord{outputKey: outputKey{Model: strings.Repeat("m", n-1), Tenant: "t"}}); r.valid() != (n < 1024) {
			t.Errorf("a record of %d bytes of names is valid: %v", n, r.valid())
		}
	}
}

// What a session's answers have shown counts for that session alone: not for another tenant's of
// the same name, another model's, or requests without a session.
func TestOutputs_ASessionIsItsTenantsOwn(t *testing.T) {
	o := NewOutputs()
	in := func(model, tenant string, session uint64) Answer {
		a := answerOf(model, tenant, 0)
		a.Session = session
		return a
	}
	ends(o, in("m", "a", 0), 400, 100)
	ends(o, in("m", "b", 0), 400, 100)
	ends(o, in("m", "a", 7), 40, 2)
	if got := o.Expect(in("m", "a", 7)); got < 40 || got > 180 {
		t.Errorf("%d tokens expected after two answers of 40", got)
	}
	ends(o, in("m", "a", 7), 40, 8)
	if got := o.Expect(in("m", "a", 7)); got < 40 || got > 85 {
		t.Errorf("%d tokens expected after ten answers of 40", got)
	}
	for what, other := range map[string]Answer{
		"another tenant's": in("m", "b", 7), "another session": in("m", "a", 8), "no session": in("m", "a", 0),
	} {
		if got := o.Expect(other); got < 350 {
			t.Errorf("%s: %d tokens expected of 400", what, got)
		}
	}
	if got := o.Expect(in("other", "a", 7)); got != UnknownOutput {
		t.Errorf("another model's: %d tokens expected", got)
	}
	for i := range 2 * tenantSessionsMost {
		ends(o, in("m", "liar", uint64(i+1)), 40, 1)
	}
	if got := len(o.sessions.tenants["liar"].entries); got != tenantSessionsMost || o.Expect(in("m", "a", 7)) > 85 {
		t.Errorf("%d sessions of one tenant are kept, or another's are forgotten", got)
	}
	if n := len(o.Records(testTime)); n > 6 {
		t.Errorf("%d means are reported: those of models, classes and tenants are 2 and 3", n)
	}
}

// What earlier answers of a session say is worth it: over the later turns of a real trace they
// take a quarter or more off the error.
func TestOutputs_TraceSessionsArePredictedBetter(t *testing.T) {
	with, without := NewOutputs(), NewOutputs()
	last := make(map[uint64]uint64) // last whole block of a prompt -> its session
	var errWith, errWithout float64
	later := 0
	for _, row := range conversationTrace(t) {
		session, known := uint64(0), false
		whole := row.HashIDs[1 : len(row.HashIDs)-1] // all prompts begin with the first block
		for i := len(whole) - 1; i >= 0 && !known; i-- {
			session, known = last[whole[i]]
		}
		if !known {
			session = row.HashIDs[len(row.HashIDs)-1] + 1 // a block of its own
		}
		if len(whole) > 0 {
			last[whole[len(whole)-1]] = session
		}
		a := answerOf("m", "", 0)
		b := a
		b.Session = session
		if known {
			later++
			errWithout += math.Abs(float64(without.Expect(a) - row.Output))
			errWith += math.Abs(float64(with.Expect(b) - row.Output))
		}
		without.Observe(a, row.Output, testTime)
		with.Observe(b, row.Output, testTime)
	}
	n := float64(later)
	t.Logf("%d later turns: predicted wrong by %.0f tokens without sessions, by %.0f with them", later, errWithout/n, errWith/n)
	if later < 3000 || errWith > 0.75*errWithout {
		t.Errorf("%d later turns, wrong by %.0f tokens without sessions and %.0f with them", later, errWithout/n, errWith/n)
	}
}

type traceRow struct {
	Output  int      `json:"output_length"`
	HashIDs []uint64 `json:"hash_ids"`
}

// conversationTrace are the requests of the trace that have two blocks or more.
func conversationTrace(t *testing.T) (rows []traceRow) {
	t.Helper()
	f, err := os.Open("../../loadtest/traces/mooncake_conversation.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var row traceRow
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			t.Fatal(err)
		}
		if len(row.HashIDs) > 1 {
			rows = append(rows, row)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return rows
}
