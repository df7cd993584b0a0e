package advise

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/mix"
	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// h100 is the server of loadtest/scaling's study.
func h100() mix.Variant {
	return mix.Variant{Name: "h100", Cost: 3, GPUs: 1, Capacity: sizing.Capacity{
		Schema: 1, Prefill: curve.Curve{0.01, 0.0628, 0}, Step: curve.Curve{0.010, 50e-6, 0.03}, KVTokens: 350_000,
	}}
}

// kvBound takes as long for a step whatever is in the batch.
func kvBound() mix.Variant {
	v := h100()
	v.Capacity.Step = curve.Curve{0.006, 0, 0}
	return v
}

func ask(t *testing.T, traffic *Traffic, itl time.Duration) *Advice {
	t.Helper()
	a, err := Ask(traffic, Question{Variants: []mix.Variant{h100()}, Window: 15 * time.Minute, Use: 0.8, TTFT: 12 * time.Second, ITL: itl})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// On Mooncake's conversations disaggregation pays where the time between tokens is
// tight: there a server that does both has little left for prompts. Where it is loose
// it does not.
func TestAsk_TightTimeBetweenTokensIsWhatPays(t *testing.T) {
	f, err := os.Open("../../loadtest/traces/mooncake_conversation.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	traffic, err := Read(f)
	if err != nil {
		t.Fatal(err)
	}
	if len(traffic.Requests) != 12031 || !traffic.Prefixes {
		t.Fatalf("%d requests, prefixes %v", len(traffic.Requests), traffic.Prefixes)
	}
	tight, loose := ask(t, traffic, 25*time.Millisecond), ask(t, traffic, 200*time.Millisecond)
	for _, a := range []*Advice{tight, loose} {
		if !a.Served() || a.Mix.Prefill[0] < 1 || a.Mix.Decode[0] < 1 {
			t.Errorf("%+v", a.Mix)
		}
		t.Logf("%v: %d + %d, both %d: %s", a.Question.ITL, a.Mix.Prefill[0], a.Mix.Decode[0], a.Aggregated[0].Servers, a.Verdict())
	}
	if best := tight.Best(); best != nil && best.Cost <= tight.Mix.Cost {
		t.Errorf("at 25 ms: %s", tight.Verdict())
	}
	if best := loose.Best(); best == nil || best.Cost > loose.Mix.Cost {
		t.Errorf("at 200 ms: %s", loose.Verdict())
	}
	var table, picture bytes.Buffer
	if err := errors.Join(tight.WriteTable(&table), tight.WriteSVG(&picture, traffic)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(table.String(), tight.Verdict()) {
		t.Errorf("the table lacks the verdict:\n%s", &table)
	}
	for decoder := xml.NewDecoder(&picture); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the picture is no XML: %v", err)
		}
	}
}

// By hand: 10 requests a second of 1,000 + 100 tokens. Prefill: 10 x 72.8 ms = 0.73, at
// 0.8 one server. Decode: 1,000 tokens a second, of which one server does thousands.
// Both at once: 728 ms of each second go to prompts, at 0.8 that is 0.91 of a server,
// and the batch must have its steps beside it: two.
func TestAsk_ByHand(t *testing.T) {
	var log strings.Builder
	for i := range 9000 {
		fmt.Fprintf(&log, `{"timestamp":%d,"input_length":1000,"output_length":100}`+"\n", i*100)
	}
	traffic, err := Read(strings.NewReader(log.String()))
	if err != nil {
		t.Fatal(err)
	}
	a := ask(t, traffic, 40*time.Millisecond)
	if a.Mix.Prefill[0] != 1 || a.Mix.Decode[0] != 1 || a.Aggregated[0].Servers != 2 || a.Prefixes {
		t.Errorf("%+v %+v", a.Mix, a.Aggregated)
	}
	if a.Verdict() != "either: both cost about the same" {
		t.Error(a.Verdict())
	}
}

// of is a traffic of these rows: seconds, tokens of the prompt, of the answer.
func of(t *testing.T, rows ...[3]int) *Traffic {
	t.Helper()
	var log strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&log, `{"timestamp":%d,"input_length":%d,"output_length":%d}`+"\n", 1000*r[0], r[1], r[2])
	}
	traffic, err := Read(strings.NewReader(log.String()))
	if err != nil {
		t.Fatal(err)
	}
	return traffic
}

// table is the advice as people read it.
func table(t *testing.T, a *Advice) string {
	t.Helper()
	var out bytes.Buffer
	if err := a.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// Two requests in a quarter of an hour want a server of each role, for twice the cost of one
// that does both.
func TestAsk_LittleTrafficWantsPrefillAndDecode(t *testing.T) {
	a, err := Ask(of(t, [3]int{0, 100, 10}, [3]int{900, 100, 10}), Question{Variants: []mix.Variant{kvBound()}, Window: 15 * time.Minute, Use: 0.8, TTFT: 10 * time.Second, ITL: 40 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if a.Mix.Prefill[0] != 1 || a.Mix.Decode[0] != 1 || a.Verdict() != "aggregated: 50 % cheaper than prefill and decode servers" {
		t.Errorf("%d + %d servers: %s", a.Mix.Prefill[0], a.Mix.Decode[0], a.Verdict())
	}
}

// Costs that differ by what rounding leaves are the same.
func TestVerdict_NothingIsNoPercentCheaper(t *testing.T) {
	for _, cost := range []float64{6 - 1e-9, 6, 6 + 1e-9, 6.02} {
		a := Advice{Mix: &mix.Mix{Cost: cost}, Aggregated: []Aggregated{{Servers: 2, Cost: 6, Meets: true}}}
		if got := a.Verdict(); got != "either: both cost about the same" {
			t.Errorf("%g and 6: %s", cost, got)
		}
	}
}

// Where nothing can be served no servers are spoken of.
func TestWriteTable_NoServersServeNothing(t *testing.T) {
	text := table(t, ask(t, of(t, [3]int{0, 9_000_000, 10}), time.Microsecond))
	if strings.Contains(text, "above") || !strings.Contains(text, "disaggregated") {
		t.Errorf("no row of prefill and decode servers, or servers that are not there:\n%s", text)
	}
	both := ask(t, of(t, [3]int{0, 9_000_000, 10}, [3]int{1, 100, 10}), 40*time.Millisecond)
	if text := table(t, both); !strings.Contains(text, "the prefill and decode servers above do not serve all of it") {
		t.Errorf("one of two is served:\n%s", text)
	}
}

// Rates are over the time that is named: a log may be shorter than the window.
func TestWriteTable_NamesTheTimeOfItsRates(t *testing.T) {
	for _, c := range []struct {
		rows [][3]int
		want string
	}{
		{[][3]int{{0, 100, 10}}, "whole log, taken as 1s: 1 requests, 100 prompt and 10 output tokens/s"},
		{[][3]int{{0, 5000, 500}, {10, 5000, 500}}, "whole log, taken as 10s: 2 requests, 1000 prompt and 100 output tokens/s"},
		{[][3]int{{0, 45_000, 4500}, {900, 45_000, 4500}}, "busiest 15m0s from 0s: 2 requests, 100 prompt and 10 output tokens/s"},
	} {
		if text := table(t, ask(t, of(t, c.rows...), 40*time.Millisecond)); !strings.HasPrefix(text, c.want) {
			t.Errorf("want %q:\n%s", c.want, text)
		}
	}
}

// What is wrong is named as the flags are.
func TestAsk_NamesTheFlagThatIsWrong(t *testing.T) {
	valid := Question{Variants: []mix.Variant{h100()}, Window: time.Minute, Use: 0.8, TTFT: time.Second, ITL: time.Second}
	traffic := of(t, [3]int{0, 100, 10})
	if _, err := Ask(traffic, valid); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Question){
		"use 0: want more than 0 and at most 1":         func(q *Question) { q.Use = 0 },
		"use 1.5: want more than 0 and at most 1":       func(q *Question) { q.Use = 1.5 },
		"use NaN: want more than 0 and at most 1":       func(q *Question) { q.Use = math.NaN() },
		"window, ttft-slo and itl-slo must be positive": func(q *Question) { q.ITL = 0 },
	} {
		q := valid
		change(&q)
		if _, err := Ask(traffic, q); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestBusiest_FindsTheBurst(t *testing.T) {
	var log strings.Builder
	for second := range 3600 {
		n := 1
		if second >= 2000 && second < 2300 {
			n = 5
		}
		for range n {
			fmt.Fprintf(&log, `{"timestamp":%d,"input_length":100,"output_length":10}`+"\n", second*1000)
		}
	}
	traffic, err := Read(strings.NewReader(log.String()))
	if err != nil {
		t.Fatal(err)
	}
	from, requests := traffic.Busiest(5 * time.Minute)
	if from < 1995*time.Second || from > 2005*time.Second || len(requests) != 1500 {
		t.Errorf("%d requests from %v", len(requests), from)
	}
}

// An access log is written as requests end, by other names, and has requests that failed.
func TestRead_AccessLog(t *testing.T) {
	const log = `{"time":"2026-11-20T12:00:02.5Z","status":200,"prompt_tokens":30,"completion_tokens":3}
{"time":"2026-11-20T12:00:01Z","status":503}
{"time":"2026-11-20T12:00:00Z","status":200,"prompt_tokens":900,"completion_tokens":90}
`
	traffic, err := Read(strings.NewReader(log))
	if err != nil {
		t.Fatal(err)
	}
	want := []Request{{0, 900, 900, 90}, {2500 * time.Millisecond, 30, 30, 3}}
	if !slices.Equal(traffic.Requests, want) || traffic.LeftOut != 1 || traffic.Prefixes {
		t.Errorf("%+v", traffic)
	}
}

func TestRead_SaysWhatIsWrong(t *testing.T) {
	for _, log := range []string{"", "{", `{"timestamp":0,"input_length":0,"output_length":1}`, `{"timestamp":0,"input_length":-1,"output_length":1}`} {
		if _, err := Read(strings.NewReader(log)); err == nil {
			t.Errorf("%q is taken", log)
		}
	}
}
