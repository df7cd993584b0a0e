package pd

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd/answerkv"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pools"
)

// keptBlocks is an answer's hand-off of 5 blocks with 73 tokens.
const keptBlocks = `{"do_remote_decode":true,"remote_block_ids":[[1,2,3,4,5]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":1,"remote_num_tokens":73}`

// What an engine keeps of an answer is read from its hand-off, its ids and its usage, of an answer alone.
func TestKeptAnswer_IsReadFromTheEnginesAnswer(t *testing.T) {
	usage := api.Usage{Prompt: api.Count{Tokens: 70, Known: true}, Output: api.Count{Tokens: 4, Known: true}}
	list := func(n int) string { return "[0" + strings.Repeat(",0", n-1) + "]" }
	one := `{"choices":[{"message":{"content":"a"},"token_ids":` + list(4) + `}],"prompt_token_ids":` + list(70) + `}`
	two := `{"choices":[{"text":"a","token_ids":` + list(4) + `},{"text":"b","token_ids":` + list(4) + `}],"prompt_token_ids":` + list(70) + `}`
	for name, c := range map[string]struct {
		handoff, answer string
		usage           api.Usage
		want            int // tokens; 0: it is not used
	}{
		"one answer":                           {keptBlocks, one, usage, 73},
		"two answers":                          {keptBlocks, two, usage, 0},
		"the engine counts nothing":            {keptBlocks, one, api.Usage{}, 0},
		"the hand-off lacks what a read takes": {`{"do_remote_decode":true}`, one, usage, 0},
	} {
		a := keptAnswer([]byte(c.handoff), idsOf([]byte(c.answer)), c.usage, 16)
		if (a != nil) != (c.want > 0) || a != nil && (len(a.IDs) != c.want || a.Prompt != 70 || string(a.Handoff) != keptBlocks) {
			t.Errorf("%s: %+v, want %d tokens", name, a, c.want)
		}
	}
}

// Ids come in events, of the prompt first.
func TestRecordIDs_OfAStream(t *testing.T) {
	var got answerkv.IDs
	for _, event := range []string{
		`{"choices":[{"delta":{"role":"assistant"}}],"prompt_token_ids":[1, 2,3]}`,
		`{"choices":[{"delta":{"content":"a"},"token_ids":[4]}]}`, `{"choices":[{"delta":{"content":"b"},"token_ids":[5,6]}]}`,
	} {
		chunk := api.ReadChunk([]byte(event))
		recordIDs(&got, &chunk)
		recordIDs(nil, &chunk) // where they are not wanted
	}
	report := answerkv.Report{IDs: &got, Prompt: 3, Output: 3, Blocks: 1, Tokens: 5, Block: 16}
	if a := report.Answer(); a == nil || !slices.Equal(a.IDs, []uint32{1, 2, 3, 4, 5}) || a.Prompt != 3 {
		t.Errorf("%+v", a)
	}
}

// KV of an earlier life of a server, or of one that is gone, is not offered.
func TestKeeper_IsTheServerAsItWas(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(640))
	f.Binder.Answers = new(answerkv.Answers)
	s, now := f.Fleet.Servers()[0], time.Now()
	answer := func(id string, life uint64, until time.Time) *answerkv.Answer {
		a := &answerkv.Answer{Server: id, Incarnation: life, IDs: make([]uint32, 100), Prompt: 80, Block: 16, Until: until}
		f.Binder.Answers.Add(a, now)
		return a
	}
	for name, c := range map[string]struct {
		a    *answerkv.Answer
		want bool
	}{
		"as it was":        {answer(s.ID(), s.Incarnation(), now.Add(time.Minute)), true},
		"started anew":     {answer(s.ID(), s.Incarnation()+1, now.Add(time.Minute)), false},
		"gone":             {answer("nowhere", s.Incarnation(), now.Add(time.Minute)), false},
		"its time is over": {answer(s.ID(), s.Incarnation(), now.Add(-time.Second)), false},
		"there was none":   {nil, false},
	} {
		if got := f.Binder.keeper(c.a, now); (got == s) != c.want || got != nil && got != s {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The KV of the answer that a prompt goes on behind is offered to prefill servers that can read it and lack at
// least 64 tokens of it, at the price of the way from the server that keeps it; where computing is as fast,
// it is not read.
func TestSetAnswers_CompetesWithComputing(t *testing.T) {
	prompt := testPrompt(6400)
	f := newTestFleet(t, 3, prompt) // the first holds a quarter of it, the others a sixteenth
	var specs []pools.Spec
	for _, s := range f.Fleet.Servers() {
		spec := s.Spec
		spec.Layout = "one" // whatever the engines report
		specs = append(specs, spec)
	}
	if err := f.Fleet.Apply(specs); err != nil {
		t.Fatal(err)
	}
	f.await(t, f.up)
	all := f.Fleet.Servers()
	for i, s := range all {
		told := pools.Identity{Engine: "vllm", Version: "0.33.0", BlockTokens: "16"}
		if i == 2 {
			told.BlockTokens = "32"
		}
		s.SetIdentity(told, true)
	}
	keeper, now := all[4], time.Now()
	f.Binder.Answers, f.Binder.Config.AnswerKV = new(answerkv.Answers), answerkv.All
	offers := func(prompt []uint32) (remotes []cost.Remote, class uint64) {
		r := &f.arrives(prompt, now).bind
		r.base = testModel
		r.prefix.tokens.By, r.prefix.tokens.Certain = tokens.ByEngine, len(prompt)
		body, err := api.ParseBody([]byte(`{"messages":[{"role":"user","content":"hi"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		r.req.Body = body
		v := f.Binder.snapshotFor(r, nil, now)
		for _, c := range append(v.candidates.Prefill, v.candidates.Decode...) {
			remotes = append(remotes, c.Remote)
		}
		return remotes, v.candidates.Prefill[0].Class
	}
	_, class := offers(prompt)
	other := append(testPrompt(3000), 1, 2, 3) // of which no server holds anything
	for _, ids := range [][]uint32{prompt, other, prompt[:1651]} {
		a := &answerkv.Answer{
			Key: answerkv.Key{Class: class, Model: testModel}, Server: keeper.ID(), Incarnation: keeper.Incarnation(),
			IDs: ids[: len(ids)-3 : len(ids)-3], Prompt: len(ids) - 60, Block: 16, Until: now.Add(time.Minute),
		}
		f.Binder.Answers.Add(a, now)
	}
	got, _ := offers(prompt)
	if want := (len(prompt) - 3) / 16 * 16; got[0].Tokens != want || got[0].Server != keeper.ID() || !got[0].Answer || got[0].PerByte <= 0 {
		t.Errorf("the server with a quarter is offered %+v, want %d tokens of %s", got[0], want, keeper.ID())
	}
	if got[1] != got[0] && got[1].Tokens != got[0].Tokens || got[2] != (cost.Remote{}) || got[3].Tokens+got[4].Tokens+got[5].Tokens != 0 {
		t.Errorf("offered to one of the same blocks, one of others, and decode: %+v", got[1:])
	}
	got, _ = offers(append(prompt[:1651:1651], 7, 7, 7))
	if got[0] != (cost.Remote{}) || got[1].Tokens != 1648 {
		t.Errorf("offered to one that lacks 48 tokens: %+v, and 1,248: %+v", got[0], got[1])
	}
	got, _ = offers(other)
	if got[0].Tokens == 0 || got[1].Tokens == 0 || got[2] != (cost.Remote{}) || got[3].Tokens+got[4].Tokens+got[5].Tokens != 0 {
		t.Errorf("offered of a prompt that none holds: %+v", got)
	}
	c := cost.Candidate{ID: "p", Remote: got[0], Prefill: candidateOf(all[0], now).Prefill}
	m := f.Binder.Cost
	if m.PullSource([]cost.Candidate{c}, "p", len(other)) == "" {
		t.Error("a read that is faster than computing is not chosen")
	}
	c.Remote.PerByte = 1
	if m.PullSource([]cost.Candidate{c}, "p", len(other)) != "" {
		t.Error("a read that takes for ever is chosen")
	}
}

// A prefill that was to read an answer's KV, and whose engine says with status 200 that it failed, is none: the prompt is to
// be computed, without that KV.
func TestAnswerKV_AFailureWithinAnAnswerIsNoRead(t *testing.T) {
	for body, read := range map[string]bool{
		`{"object":"error","message":"the blocks are gone","code":500}`:              false,
		`{"error":{"message":"try later","code":503}}`:                               false,
		`{"choices":[{"index":0,"message":{"content":""},"finish_reason":"abort"}]}`: false,
		`[]`: false,
		`{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"length"}],"kv_transfer_params":{}}`: true,
	} {
		f := newTestFleet(t, 1, testPrompt(100))
		f.Transport = sends(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
		})
		st, b := f.bound(t, false)
		st.client.Dialect, b.reads = api.Chat, &answerkv.Answer{Server: b.decode.Server().ID()}
		transfer := st.transfer(b)
		transfer.Answer = &connector.AnswerKV{Handoff: []byte(keptBlocks), IDs: testPrompt(100), Tokens: 64, Block: 16}
		answer, failed := answerKV{f.Orchestrator}.sendPrefill(t.Context(), st, b, transfer, api.Chat)
		if failed != nil || answer.IsOfPrefill() != read || (transfer.Answer != nil) != read {
			t.Errorf("%s: an answer %v, failed %v, still to be read %v", body, answer.IsOfPrefill(), failed, transfer.Answer != nil)
		}
	}
}
