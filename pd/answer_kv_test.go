package pd

import (
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/answerkv"
	"github.com/tandem-gateway/tandem/pd/api"
)

// keptBlocks is an answer's hand-off of 5 blocks with 73 tokens.
const keptBlocks = `{"do_remote_decode":true,"remote_block_ids":[[1,2,3,4,5]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":1,"remote_num_tokens":73}`

// What an engine keeps of an answer is used where all of its tokens are known, and not otherwise.
func TestKeptAnswer_OnlyWhereAllTokensAreKnown(t *testing.T) {
	usage := func(prompt, output int) api.Usage {
		return api.Usage{Prompt: api.Count{Tokens: prompt, Known: true}, Output: api.Count{Tokens: output, Known: true}}
	}
	ids := func(n int) *legIDs { return &legIDs{ids: make([]uint32, n), prompt: 70} }
	for name, c := range map[string]struct {
		handoff string
		ids     *legIDs
		usage   api.Usage
		block   int
		want    int // tokens; 0: it is not used
	}{
		"all are":                              {keptBlocks, ids(74), usage(70, 4), 16, 73},
		"with the token that ended it":         {keptBlocks, ids(73), usage(70, 3), 16, 72},
		"one was not reported":                 {keptBlocks, ids(73), usage(70, 4), 16, 0},
		"none was":                             {keptBlocks, nil, usage(70, 4), 16, 0},
		"some cannot be read":                  {keptBlocks, &legIDs{ids: make([]uint32, 74), prompt: 70, bad: true}, usage(70, 4), 16, 0},
		"the engine counts nothing":            {keptBlocks, ids(74), api.Usage{}, 16, 0},
		"the size of a block is not known":     {keptBlocks, ids(74), usage(70, 4), 0, 0},
		"the size of a block is another":       {keptBlocks, ids(74), usage(70, 4), 32, 0},
		"the hand-off lacks what a read takes": {`{"do_remote_decode":true}`, ids(74), usage(70, 4), 16, 0},
	} {
		a := keptAnswer([]byte(c.handoff), c.ids, c.usage, c.block)
		if (a != nil) != (c.want > 0) || a != nil && (len(a.IDs) != c.want || a.Prompt != 70) {
			t.Errorf("%s: %+v, want %d tokens", name, a, c.want)
		}
	}
}

// Ids come in events, of the prompt first; what is no id, or comes without a prompt, is not trusted.
func TestLegIDs(t *testing.T) {
	for name, c := range map[string]struct {
		events []string
		want   int
		bad    bool
	}{
		"a stream": {[]string{
			`{"choices":[{"delta":{"role":"assistant"}}],"prompt_token_ids":[1, 2,3]}`,
			`{"choices":[{"delta":{"content":"a"},"token_ids":[4]}]}`, `{"choices":[{"delta":{"content":"b"},"token_ids":[5,6]}]}`,
		}, 6, false},
		"no prompt":       {[]string{`{"choices":[{"delta":{"content":"a"},"token_ids":[4]}]}`}, 1, true},
		"a late prompt":   {[]string{`{"choices":[{"delta":{"content":"a"},"token_ids":[4]}]}`, `{"choices":[],"prompt_token_ids":[1]}`}, 1, true},
		"what is no id":   {[]string{`{"choices":[{"delta":{}}],"prompt_token_ids":[1,-2]}`}, 2, true},
		"one far too big": {[]string{`{"choices":[{"delta":{}}],"prompt_token_ids":[4294967296]}`}, 1, true},
	} {
		var l legIDs
		for _, event := range c.events {
			chunk := api.ReadChunk([]byte(event))
			l.record(&chunk)
		}
		if len(l.ids) != c.want || l.bad != c.bad {
			t.Errorf("%s: %v, bad %v", name, l.ids, l.bad)
		}
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
