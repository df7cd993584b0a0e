package pd

import (
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// An answer without tools, or whose tools are not called, says each token.
func TestSilence_OfWhatMayCallTools(t *testing.T) {
	for fields, want := range map[string]bool{
		`"a":1`: false, `"tools":null`: false, `"tools":[]`: false, `"tools":[{}],"tool_choice":"none"`: false,
		`"tools":[{}]`: true, `"tools":[{}],"tool_choice":"auto"`: true, `"tools":[{}],"tool_choice":{"type":"any"}`: true,
		`"include_reasoning":false`: true, `"include_reasoning":true`: false, `"stream_reasoning":false`: true,
	} {
		body, err := api.ParseBody([]byte("{" + fields + "}"))
		if got := mayBeSilent(body); err != nil || got != want {
			t.Errorf("%s: %v, %v", fields, got, err)
		}
	}
}

// What a parser of tool calls held back comes in one gap, which is that of many tokens.
func TestSilence_ACallThatWasHeldBackIsNoStep(t *testing.T) {
	body, err := api.ParseBody([]byte(`{"tools":[{"type":"function"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		req   *Request
		holds bool
	}{{&Request{Model: "m"}, false}, {&Request{Model: "m", Body: body}, true}} {
		f := newTestFleet(t, 1, testPrompt(100))
		s := f.Fleet.Servers()[1]
		candidate := candidateOf(s, time.Now())
		x := curve.StepFeatures(candidate.Running, candidate.KVUsed)
		before := s.StepCurve().Seconds(x)
		for range 50 {
			steps := f.newStepSampler(s, c.req)
			observe := steps.gapsOf(mayBeSilent(c.req.Body))
			for range gapsPerSample - 1 {
				observe(time.Duration(before * float64(time.Second)))
			}
			observe(10 * time.Second)
			steps.end()
		}
		if got := s.StepCurve().Seconds(x) / before; got < 1.1 != c.holds {
			t.Errorf("may call tools %v: a step is believed to take %.2f times as long", c.holds, got)
		}
	}
}
