package predict

import (
	"sync"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/cost"
)

// Whatever is learned here is asked by every request while others teach it: any two calls may
// come at once. What is unsafe the race detector says.
func TestAll_AreSafeForConcurrentUse(t *testing.T) {
	var (
		probes  DeadlineProbes
		savings CacheSavings
		margin  Margin
		ttft    TTFTMargin
		outputs = NewOutputs()
		prompts = NewPrompts()
		told    OutputSync
	)
	answer, prompt := answerOf("m", "a", 0), Prompt{Model: "m", API: "chat", Context: 1, Rough: 100}
	records := []OutputRecord{{outputKey: outputKey{Model: "m"}, Count: 1, Sum: 10, Tokens: 10, Known: 1}}
	var all sync.WaitGroup
	for _, call := range []func(){
		func() { probes.Observe("m", testTime) },
		func() { probes.Take("m", testTime) },
		func() { savings.Observe("s", 10, testTime) },
		func() { savings.Read(testTime) },
		func() { margin.Observe(time.Second, time.Second, 0.9) },
		func() { margin.ObserveMiss(0.9) },
		func() { margin.Bound(time.Second) },
		func() { ttft.Observe(&cost.Terms{}, time.Second) },
		func() { ttft.Bound(&cost.Terms{}) },
		func() { outputs.Observe(answer, 10, testTime) },
		func() { outputs.Expect(answer) },
		func() { outputs.Records(testTime) },
		func() { told.TakeIn(outputs, records, testTime) }, // one replica's record has one reader
		func() { prompts.Observe(prompt, 100, testTime) },
		func() { prompts.Expect(prompt) },
	} {
		all.Go(func() {
			for range 100 {
				call()
			}
		})
	}
	all.Wait()
}
