package vllm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// TestVLLM: a gateway in front of two prefill and two decode servers of vLLM.
func TestVLLM(t *testing.T) {
	var engines []*engine
	for _, name := range []string{"prefill 0", "prefill 1", "decode 0", "decode 1"} {
		engines = append(engines, launch(t, name))
	}
	began := time.Now()
	for _, e := range engines {
		e.waitUntilUp(t)
	}
	t.Logf("four servers were up after %.0f s", time.Since(began).Seconds())
	prefill, decode := engines[:2], engines[2:]
	g := startGateway(t, prefill, decode)

	t.Run("engines tell what they are", func(t *testing.T) { tellThemselves(t, g) })
	t.Run("answers are those of one engine", func(t *testing.T) { answersAreRight(t, g, decode) })
	t.Run("usage is that of one engine", func(t *testing.T) { usageIsThatOfOne(t, g, decode) })
	t.Run("what is predicted to be cached is", func(t *testing.T) { cachesAreKnown(t, g) })
	t.Run("a client that leaves leaves nothing behind", func(t *testing.T) { nothingStays(t, g, engines) })
	t.Run("decode takes prefill's tokens", func(t *testing.T) { templatesDiffer(t, prefill[0], decode[1]) })
	t.Run("a busy server is not dead", func(t *testing.T) { busyIsNotDead(t, prefill[1], decode[0]) })
	t.Run("a server that stands still is not dead", func(t *testing.T) { stoppedIsNotDead(t, prefill[1], decode[0]) })
	t.Run("a stream outlives its decode server", func(t *testing.T) { streamsGoOn(t, g, prefill[0], decode) })
	t.Run("a prefill server that dies costs nothing", func(t *testing.T) { prefillDies(t, g, prefill) })
}

// tellThemselves: connector, version and KV settings are asked of the engines; no file
// configures them.
func tellThemselves(t *testing.T, g gateway) {
	var servers []struct {
		ID, Connector string
		Told          struct {
			Engine, Version string
			BlockTokens     string `json:"block_tokens"`
		}
	}
	process.WaitFor(t, g.process, "what four engines tell", process.ReadyWithin, func() error {
		if err := process.JSON(g.admin+"/debug/servers", &servers); err != nil {
			return err
		}
		for _, s := range servers {
			if s.Connector != "nixl" || s.Told.Engine != "vllm" || s.Told.Version == "" || s.Told.BlockTokens != "32" {
				return fmt.Errorf("%s: %s, %+v", s.ID, s.Connector, s.Told)
			}
		}
		if len(servers) != 4 {
			return fmt.Errorf("%d servers", len(servers))
		}
		return nil
	})
	t.Logf("%+v", servers)
}

// text is a prompt of so many words that no other seed has.
func text(seed uint64, words int) string {
	r := rand.New(rand.NewPCG(seed, 0))
	said := make([]string, words)
	for i := range said {
		said[i] = strings.Fields("prefill decode pool server pair block event connector goodput gateway cache token batch queue link rack")[r.IntN(16)]
	}
	return strings.Join(said, " ")
}

// answersAreRight: what comes through a pair is, to the byte, what one engine says that
// does all by itself; the KV came from prefill, and decode computed next to nothing.
func answersAreRight(t *testing.T, g gateway, decode []*engine) {
	const fetched, computed = `source="external_kv_transfer"`, `source="local_compute"`
	source := func(which string) (tokens float64) {
		for _, d := range decode {
			tokens += metric(t, d.url, "vllm:prompt_tokens_by_source_total", which)
		}
		return tokens
	}
	pairs, asked := 0, 0.0
	var wanted []map[string]any
	var got []answer
	for seed, words := range []int{100, 400, 1500} {
		for _, stream := range []bool{false, true} {
			for _, chat := range []bool{false, true} {
				said := text(uint64(1000*words+10*seed)+uint64(len(got)), words)
				body := map[string]any{"prompt": said, "max_tokens": 24, "stream": stream}
				if chat {
					body = map[string]any{"messages": []map[string]string{{"role": "user", "content": said}}, "max_tokens": 24, "stream": stream}
				}
				a := ask(t, g.url, body)
				if a.prefill != "" {
					pairs++
					asked += float64(a.prompt)
				}
				wanted, got = append(wanted, body), append(got, a)
			}
		}
	}
	came, own := source(fetched), source(computed)
	t.Logf("%d of %d requests by pairs: of %.0f prompt tokens %.0f came by NIXL, decode computed %.0f", pairs, len(got), asked, came, own)
	if pairs < len(got)/2 || came < 0.9*asked {
		t.Error("too little came from prefill")
	}
	if n := metric(t, g.admin, "tandem_silent_recomputes_total"); n != 0 {
		t.Errorf("%v silent recomputes", n)
	}
	for i, body := range wanted {
		alone := ask(t, decode[0].url, body)
		if a := got[i]; a.text != alone.text || a.prompt != alone.prompt || a.output != alone.output {
			t.Errorf("request %d by %s and %s:\n%q\nby one engine:\n%q", i, a.prefill, a.decode, a.text, alone.text)
		}
	}
}

// cachesAreKnown: from vLLM's own KV events the gateway knows how much of a prompt the
// chosen prefill server has, and a conversation stays where its KV is. It believes too
// little where an engine's /tokenize is too slow to be waited for, and never too much.
func cachesAreKnown(t *testing.T, g gateway) {
	messages := []map[string]string{{"role": "system", "content": text(77, 300)}}
	believed, held := 0, 0
	for turn := range 6 {
		messages = append(messages, map[string]string{"role": "user", "content": text(uint64(100+turn), 60)})
		a := ask(t, g.url, map[string]any{"messages": messages, "max_tokens": 40})
		messages = append(messages, map[string]string{"role": "assistant", "content": a.text})
		var d struct {
			Attempts []struct {
				Alternatives []struct {
					Chosen          bool
					Prefill, Decode string
					PrefillCached   int `json:"prefill_cached"`
					DecodeCached    int `json:"decode_cached"`
				}
			}
		}
		if err := process.JSON(g.admin+"/debug/decisions/"+a.id, &d); err != nil {
			t.Fatal(err)
		}
		predicted := 0
		for _, alternative := range d.Attempts[len(d.Attempts)-1].Alternatives {
			if alternative.Chosen && alternative.Prefill != "" {
				predicted = alternative.PrefillCached
			} else if alternative.Chosen {
				predicted = alternative.DecodeCached
			}
		}
		t.Logf("turn %d by %s and %s: %d of %d tokens predicted to be cached, %d were", turn, a.prefill, a.decode, predicted, a.prompt, a.cached)
		believed, held = believed+predicted, held+a.cached
		if turn > 0 && a.cached < a.prompt/3 {
			t.Errorf("turn %d did not find its conversation", turn)
		}
		if predicted > a.cached {
			t.Errorf("turn %d: too much was believed", turn)
		}
	}
	t.Logf("%.1f %% of the cached tokens were known of", 100*float64(believed)/float64(held))
	if float64(believed) < 0.8*float64(held) {
		t.Error("too few")
	}
}

// nothingStays: requests whose clients leave, in prefill and in decode, end in the
// engines, and the KV that waited for a decode is free again after its lease (30 s).
func nothingStays(t *testing.T, g gateway, engines []*engine) {
	for i := range 8 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(20+60*i)*time.Millisecond)
		body, err := json.Marshal(map[string]any{"model": model, "prompt": text(uint64(500+i), 1500), "max_tokens": 2000, "stream": true})
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+"/v1/completions", strings.NewReader(string(body)))
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := client.Do(req); err == nil {
			<-ctx.Done()
			resp.Body.Close()
		}
		cancel()
	}
	left := time.Now()
	process.WaitFor(t, g.process, "the engines to be idle", 2*time.Minute, func() error {
		for _, e := range engines {
			if n := metric(t, e.url, "vllm:num_requests_running") + metric(t, e.url, "vllm:num_requests_waiting"); n != 0 {
				return fmt.Errorf("%s has %v requests", e.url, n)
			}
			if used := metric(t, e.url, "vllm:kv_cache_usage_perc"); used != 0 {
				return fmt.Errorf("%s uses %v of its KV", e.url, used)
			}
		}
		return nil
	})
	t.Logf("idle %.1f s after the last of 8 clients left", time.Since(left).Seconds())
}

// streamsGoOn: the decode server of a stream is killed in its midst; the other goes on by
// token ids, and the answer is that of an undisturbed engine.
func streamsGoOn(t *testing.T, g gateway, witness *engine, decode []*engine) {
	body := func() map[string]any {
		return map[string]any{"prompt": text(900, 300), "max_tokens": 400, "ignore_eos": true, "stream": true}
	}
	var serving *engine
	kill := func(pieces int) {
		if pieces != 40 {
			return
		}
		for _, d := range decode {
			if metric(t, d.url, "vllm:num_requests_running") > 0 {
				serving = d
				d.kill(t)
				return
			}
		}
	}
	got, err := tryAsk(g.url, body(), kill)
	if err != nil {
		t.Fatal(err)
	}
	if serving == nil {
		t.Fatal("no decode server had the stream")
	}
	alone := ask(t, witness.url, body())
	if got.text != alone.text || got.output != alone.output || !got.done {
		t.Errorf("%d tokens, done %v:\n%q\nundisturbed, %d tokens:\n%q", got.output, got.done, got.text, alone.output, alone.text)
	}
	continued := metric(t, g.admin, "tandem_continuations_total", `outcome="continued"`)
	t.Logf("%s was killed after 40 events: %d tokens, all as undisturbed; %v continued", serving.host(), got.output, continued)
}

// prefillDies: while requests come one after the other a prefill server is killed, and
// no client notices.
func prefillDies(t *testing.T, g gateway, prefill []*engine) {
	var failed []error
	by := map[string]int{}
	for i := range 20 {
		if i == 5 {
			prefill[0].kill(t)
		}
		a, err := tryAsk(g.url, map[string]any{"prompt": text(uint64(2000+i), 400), "max_tokens": 8}, nil)
		if err != nil {
			failed = append(failed, err)
		}
		by[a.prefill]++
	}
	t.Logf("20 requests, %d failed, prefilled by %v", len(failed), by)
	if err := errors.Join(failed...); err != nil {
		t.Error(err)
	}
}
