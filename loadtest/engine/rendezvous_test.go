package engine

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// sglangPair starts two engines whose legs meet.
func sglangPair(t *testing.T, change func(*Config)) (p, d *Engine) {
	t.Helper()
	as := func(role string) func(*Config) {
		return func(cfg *Config) {
			cfg.Connector, cfg.Role = ConnectorSGLang, role
			if change != nil {
				change(cfg)
			}
		}
	}
	return start(t, as(RolePrefill)), start(t, as(RoleDecode))
}

// inRoom is what both legs of a request must name.
func inRoom(t *testing.T, p *Engine, number int64) fields {
	t.Helper()
	host, port, err := net.SplitHostPort(p.State().KVAddress)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return fields{"bootstrap_host": host, "bootstrap_port": n, "bootstrap_room": number}
}

// both posts the two legs at once and returns the status of each and decode's answer.
func both(t *testing.T, p, d *Engine, prefillBody, decodeBody fields) (ofPrefill, ofDecode int, answer []byte) {
	t.Helper()
	done := make(chan int)
	go func() {
		status, _ := post(t, p, "/v1/chat/completions", prefillBody)
		done <- status
	}()
	ofDecode, answer = post(t, d, "/v1/chat/completions", decodeBody)
	return <-done, ofDecode, answer
}

func TestMeeting_AnswerEqualsAggregated(t *testing.T) {
	p, d := sglangPair(t, nil)
	for i, words := range []int{1, 7, 300} {
		body := chatBody(words, 30)
		want := ask[chatAnswer](t, start(t, nil), "/v1/chat/completions", body).content()
		legs := body.with(inRoom(t, p, int64(i)))
		ofPrefill, ofDecode, raw := both(t, p, d, legs, legs)
		var got chatAnswer
		if err := json.Unmarshal(raw, &got); err != nil || ofPrefill != 200 || ofDecode != 200 || got.content() != want {
			t.Errorf("%d words: %d and %d: %s", words, ofPrefill, ofDecode, raw)
		}
	}
	if s := p.State(); s.PrefillsDone != 3 || s.HandoffsPulled != 3 || s.HandoffsOpen != 0 || s.KVBlocksUsed != 0 {
		t.Errorf("prefill engine: %+v", s)
	}
	if s := d.State(); s.DecodesDone != 3 || s.KVBlocksUsed != 0 {
		t.Errorf("decode engine: %+v", s)
	}
}

// One leg after the other is a deadlock, which ends only with the engine's patience.
func TestMeeting_OneLegAloneWaitsForItsTimeout(t *testing.T) {
	for _, role := range []string{RolePrefill, RoleDecode} {
		p, d := sglangPair(t, func(cfg *Config) { cfg.MeetTimeout = 200 * time.Millisecond })
		alone := p
		if role == RoleDecode {
			alone = d
		}
		begun := time.Now()
		status, raw := post(t, alone, "/v1/chat/completions", chatBody(60, 5).with(inRoom(t, p, 7)))
		if took := time.Since(begun); status != 500 || !strings.Contains(string(raw), "KVTransferError") || took < 200*time.Millisecond {
			t.Errorf("%s alone: %d after %v: %s", role, status, took, raw)
		}
		if s := p.State(); s.PrefillsDone != 0 || s.HandoffsOpen != 0 || s.KVBlocksUsed+d.State().KVBlocksUsed != 0 {
			t.Errorf("%s alone left %+v", role, s)
		}
	}
}

// A leg is told nothing of its peer's end, so only its own client can free it.
func TestMeeting_APeerThatLeavesIsNotNoticed(t *testing.T) {
	p, d := sglangPair(t, func(cfg *Config) { cfg.TimeScale = 1 })
	leave := func(e *Engine, body fields) {
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			resp, err := client.Do(request(t, ctx, e, "/v1/chat/completions", body))
			if err == nil {
				resp.Body.Close()
			}
		}()
		eventually(t, "the leg is there", func() bool { return e.State().ServerLoad == 1 })
		cancel()
		<-gone
		eventually(t, "it has left", func() bool { return e.State().ServerLoad == 0 })
	}
	body := chatBody(60, 5).with(inRoom(t, p, 1))
	leave(p, body)
	status := make(chan int, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		resp, err := client.Do(request(t, ctx, d, "/v1/chat/completions", chatBody(60, 5).with(inRoom(t, p, 2))))
		if err == nil {
			resp.Body.Close()
		}
		close(status)
	}()
	eventually(t, "decode waits", func() bool { return d.State().Waiting == 1 })
	leave(p, chatBody(60, 5).with(inRoom(t, p, 3)))
	if s := d.State(); s.Waiting != 1 || s.KVBlocksUsed == 0 {
		t.Errorf("decode: %d waiting, %d blocks", s.Waiting, s.KVBlocksUsed)
	}
	cancel()
	<-status
	eventually(t, "decode is free", func() bool { return d.State().KVBlocksUsed == 0 })
}

func TestMeeting_WhatCannotMeetIsRefused(t *testing.T) {
	p, d := sglangPair(t, nil)
	at := func(number int64) fields { return chatBody(60, 5).with(inRoom(t, p, number)) }
	without := func(f fields, key string) fields {
		delete(f, key)
		return f
	}
	for name, c := range map[string]struct {
		body fields
		want int
	}{
		"no room":               {without(at(1), "bootstrap_room"), 400},
		"no host":               {without(at(1), "bootstrap_host"), 400},
		"a negative room":       {at(-1), 400},
		"a rank that is not":    {at(1).with(fields{"routed_dp_rank": 1}), 400},
		"one room for two":      {at(1).with(fields{"n": 2}), 400},
		"the same room for two": {at(1).with(fields{"n": 2, "bootstrap_room": []int{4, 4}, "bootstrap_host": []string{"h", "h"}, "bootstrap_port": []int{1, 1}}), 400},
	} {
		for _, e := range []*Engine{p, d} {
			if status, raw := post(t, e, "/v1/chat/completions", c.body); status != c.want {
				t.Errorf("%s: %d: %s", name, status, raw)
			}
		}
	}
	oldP, oldD := sglangPair(t, func(cfg *Config) { cfg.Version = "0.5.21" })
	for path, body := range map[string]fields{
		"/v1/messages":  {"messages": []fields{{"role": "user", "content": "hi"}}, "max_tokens": 3},
		"/v1/responses": {"input": "hi", "max_output_tokens": 3},
	} {
		for _, e := range []*Engine{oldP, oldD} { // newer ones would wait for each other
			if status, raw := post(t, e, path, body.with(inRoom(t, oldP, 2))); status != 400 || !strings.Contains(string(raw), "room id") {
				t.Errorf("%s: %d: %s", path, status, raw)
			}
		}
	}
	// A room is used once, and by legs of one prompt.
	if a, b, raw := both(t, p, d, at(20), at(20)); a != 200 || b != 200 {
		t.Fatalf("%d and %d: %s", a, b, raw)
	}
	if a, b, _ := both(t, p, d, at(20), at(20)); a != 500 || b != 500 {
		t.Errorf("a room was used twice: %d and %d", a, b)
	}
	if n := p.State().HandoffsRejectedByReason[rejectedUsed]; n != 2 {
		t.Errorf("%d legs came too late", n)
	}
	if _, b, _ := both(t, p, d, chatBody(90, 5).with(inRoom(t, p, 21)), at(21)); b != 500 || d.State().LoadFailuresByReason[recomputeForeign] != 1 {
		t.Errorf("another prompt's KV was taken: %d, %v", b, d.State().LoadFailuresByReason)
	}
}

func TestMeeting_DecodeNamesPrefillsRank(t *testing.T) {
	ranks := func(cfg *Config) { cfg.DataParallel = 2 }
	p, d := sglangPair(t, ranks)
	hastyP, hastyD := sglangPair(t, func(cfg *Config) { ranks(cfg); cfg.MeetTimeout = 300 * time.Millisecond })
	for i, c := range []struct {
		prefill, told any
		want          int
	}{
		{1, 1, http.StatusOK}, {0, 0, http.StatusOK},
		{nil, nil, http.StatusOK}, // both go by the room
		{1, 0, http.StatusInternalServerError},
	} {
		p, d := p, d
		if c.want != http.StatusOK { // they wait for each other in vain
			p, d = hastyP, hastyD
		}
		body := chatBody(60, 5).with(inRoom(t, p, int64(i)))
		if _, status, raw := both(t, p, d, body.with(fields{"routed_dp_rank": c.prefill, "disagg_prefill_dp_rank": c.prefill}), body.with(fields{"routed_dp_rank": 1, "disagg_prefill_dp_rank": c.told})); status != c.want {
			t.Errorf("prefill on %v, decode told %v: %d %s", c.prefill, c.told, status, raw)
		}
	}
}

// A prefill server of several ranks takes a request on another one than its room's only where decode is told too.
func TestMeeting_PrefillFollowsTheRoomUnlessDecodeIsTold(t *testing.T) {
	p, _ := sglangPair(t, func(cfg *Config) { cfg.DataParallel = 2 })
	body := chatBody(60, 5).with(inRoom(t, p, 4)).with(fields{"routed_dp_rank": 1})
	if status, raw := post(t, p, "/v1/chat/completions", body); status != http.StatusInternalServerError || !strings.Contains(string(raw), "follow_bootstrap_room conflict") {
		t.Errorf("%d %s", status, raw)
	}
}

func TestMeeting_DecodeReusesPrefixesOnlyWhenSwitchedOn(t *testing.T) {
	for _, reuse := range []bool{false, true} {
		p, d := sglangPair(t, func(cfg *Config) {
			cfg.DecodeReuse, cfg.Exposition = reuse, ExpositionVLLM // which counts hits
		})
		for i := range int64(2) {
			body := chatBody(60, 5).with(inRoom(t, p, i))
			if a, b, raw := both(t, p, d, body, body); a != 200 || b != 200 {
				t.Fatalf("%d and %d: %s", a, b, raw)
			}
		}
		_, metrics := get(t, d.URL()+"/metrics")
		hits := strings.Contains(string(metrics), `vllm:prefix_cache_hits_total{engine="0",model_name="sim-model"} 0`)
		if hits == reuse {
			t.Errorf("reuse %v: no hits is %v", reuse, hits)
		}
	}
}
