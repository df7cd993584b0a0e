package connector

import (
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// The whole answer begins with prefill's token where decode goes on behind it, and is decode's own
// else; ids are for clients that asked for them.
func TestHandoff_TheWholeAnswer(t *testing.T) {
	const first = `{"choices":[{"index":0,"text":"Hel","token_ids":[5]}],"usage":{"prompt_tokens":7,"completion_tokens":1}}`
	const rest = `{"choices":[{"index":0,"text":"lo","token_ids":[6]}],"usage":{"prompt_tokens":8,"completion_tokens":1}}`
	said := func(text string) *api.Answer {
		answer, err := api.Completions.ReadAnswer([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return &answer
	}
	saidFirst := func(text string) *api.FirstToken {
		token := api.ReadFirstToken(*said(text))
		return &token
	}
	behind := &Handoff{First: saidFirst(first), goesOn: true}
	for name, h := range map[string]*Handoff{"no hand-off": nil, "one that decode begins anew": {First: saidFirst(first)}} {
		if got, err := h.Whole(api.Completions, said(rest), said(rest).Body(), false); err != nil || string(got) != rest || h.GoesOn() {
			t.Errorf("%s: %s, %v", name, got, err)
		}
		if u := h.Usage(api.Usage{Prompt: api.Count{Tokens: 8}}); u.Prompt.Tokens != 8 || u.Output.Tokens != 0 {
			t.Errorf("%s: %+v", name, u)
		}
	}
	for shown, want := range map[bool]string{true: "[5,6]", false: "null"} {
		got, err := behind.Whole(api.Completions, said(rest), said(rest).Body(), shown)
		if err != nil || gjson.GetBytes(got, "choices.0.text").String() != "Hello" || gjson.GetBytes(got, "choices.0.token_ids").Raw != want {
			t.Errorf("ids are shown: %v: %s, %v", shown, got, err)
		}
	}
	if u := behind.Usage(api.Usage{Prompt: api.Count{Tokens: 8}, Output: api.Count{Tokens: 1}}); u.Prompt.Tokens != 7 || u.Output.Tokens != 2 {
		t.Errorf("%+v", u)
	}
	for name, x := range map[string]struct{ first, rest string }{
		"prefill said no object": {`[]`, rest}, "decode said no object": {first, `[]`}, "no choice": {first, `{"choices":[]}`},
	} {
		if got, err := (&Handoff{First: saidFirst(x.first), goesOn: true}).Whole(api.Completions, said(x.rest), said(x.rest).Body(), true); err == nil {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// Where decode says the first token it is asked for the whole answer: with prefill's seed where there is one, with the hand-off
// where prefill gave one, and with the ids of the prompt.
func TestSayFirst_DecodeIsAskedForAll(t *testing.T) {
	const handoff = `"kv_transfer_params":{"remote_host":"10.0.0.1"}`
	for answer, want := range map[string]string{
		`{"prompt_token_ids":[1,2],` + handoff + `}`: `{"messages":[],"seed":9,"kv_transfer_params":{"remote_host":"10.0.0.1","prompt_token_ids":[1,2]}}`,
		`{` + handoff + `}`:                          `{"messages":[],"seed":9,` + handoff + `}`,
		`{}`:                                         `{"messages":[],"seed":9}`,
	} {
		tr := &Transfer{dialect: api.Chat, body: parsed(t, `{"messages":[]}`), sharesIDs: true, First: First{Wanted: true}, From: pools.NewServer(pools.Spec{Connector: "nixl"}), To: pools.NewServer(pools.Spec{Connector: "nixl"})}
		h := tr.Handoff()
		h.RecordPrefill(tr, answered(t, api.Chat, answer), time.Now())
		h.SayFirst(First{Seed: 9})
		if got := string(h.Leg.Body.Bytes()); got != want {
			t.Errorf("%s: decode is sent\n%s, want\n%s", answer, got, want)
		}
		h.SayFirst(First{})
		if got := string(h.Leg.Body.Bytes()); got != strings.Replace(want, `"seed":9,`, "", 1) && got != strings.Replace(want, `,"seed":9`, "", 1) {
			t.Errorf("%s: without a seed decode is sent\n%s", answer, got)
		}
	}
}

// Which servers can do their part of a divided prompt: vLLM since 0.32 where it serves requests
// whole, and of a pair with NIXL, for which it is proved.
func TestPieces_WhichServersCan(t *testing.T) {
	newer, older, other := pools.Identity{Engine: "vllm", Version: "0.32.0"}, pools.Identity{Engine: "vllm", Version: "0.31.0"}, pools.Identity{Engine: "sglang", Version: "0.32.0"}
	for connector, want := range map[string]struct{ keeps, takes bool }{"nixl": {true, true}, "aggregated": {true, false}, "mooncake": {true, false}} {
		servers := identified(t, connector, newer, newer, older, other)
		for i, keeps := range []bool{want.keeps, want.keeps, false, false} {
			if got := KeepsPieces(servers[i]); got != keeps {
				t.Errorf("%s: server %d keeps pieces: %v", connector, i, got)
			}
			if got := TakesPieces(servers[0], servers[i]); got != (want.takes && i < 2) {
				t.Errorf("%s: from 0 to %d pieces are taken: %v", connector, i, got)
			}
		}
	}
}

// The blocks of a hand-off count where they are those of one group that decode reads itself.
func TestWholeBlocks(t *testing.T) {
	for params, want := range map[string]HandedBlocks{
		`{"remote_block_ids":[[1,2,3]],"remote_num_tokens":40}`: {3, 40}, `{"remote_block_ids":[[1],[2]],"remote_num_tokens":40}`: {}, `{"remote_block_ids":[1],"remote_num_tokens":40}`: {},
		`{"remote_block_ids":[],"remote_num_tokens":40}`: {}, `{"remote_block_ids":null,"remote_num_tokens":40}`: {}, `{"remote_block_ids":[ [1, 2] ]}`: {2, 0},
		`{"remote_block_ids":[[1,2]],"remote_num_tokens":40,"transfer_mode":"push"}`: {}, `{"remote_block_ids":[[1,2]],"remote_num_tokens":40,"transfer_mode":"pull"}`: {2, 40}, `{}`: {},
	} {
		handoff, _ := api.Value(params).Object()
		if got := wholeBlocks(handoff); got != want {
			t.Errorf("%s: %+v, want %+v", params, got, want)
		}
	}
}

// A host has a name of so many bytes at most.
func TestHostOf_ALongName(t *testing.T) {
	for length, known := range map[int]bool{maxHost: true, maxHost + 1: false} {
		name := strings.Repeat("x", length)
		if got := hostOf(api.Value(`"` + name + `"`)); (got == name) != known || !known && got != "" {
			t.Errorf("%d bytes: %.20q", length, got)
		}
	}
}
