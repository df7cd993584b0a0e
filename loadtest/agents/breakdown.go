package agents

import "fmt"

// slowestOf is of how many later turns the slowest is explained.
const slowestOf = 30

// slowest are the slowest of the turns of all sessions.
func (l laterTurns) slowest() []*turn {
	all := l.slowestFirst()
	return all[:(len(all)+slowestOf-1)/slowestOf]
}

// breakdown is where the time of turns went, in the mean, in seconds of the engines.
type breakdown struct {
	Turns int
	TTFT  float64
	// Of that, from arrival until servers were chosen; from then until prefill had answered, its
	// queue and the engine's reading of the request included; from then until decode's first event;
	// and what is left: the client's, the gateway's, and what a decode server computed alone.
	Waited, Prefill, Transfer, Rest float64
	// What was predicted of prefill with its queue, and of the transfer with decode's step.
	PredictedPrefill, PredictedTransfer float64
	// Of the turns, those that a decode server computed alone, that changed their server and need
	// not, that had less cached than was believed, and whose tokens were not known.
	Alone, Changed, Lost, Unknown int
}

// newBreakdown adds up what the gateway remembers of turns.
func newBreakdown(turns []*turn, speed float64) (b breakdown) {
	each := speed / float64(max(len(turns), 1))
	seconds := func(ms float64) float64 { return each * milliseconds(ms).Seconds() }
	for _, t := range turns {
		b.Turns++
		b.TTFT += each * t.ttft.Seconds()
		b.Rest += each * t.ttft.Seconds()
		if t.prefill == "" {
			b.Alone++
		}
		if t.changed {
			b.Changed++
		}
		a := t.decision.last()
		if a == nil {
			continue
		}
		if a.Tokens.Unknown != "" {
			b.Unknown++
		}
		chosen := a.chosen()
		if t.usage.cached < chosen.cached()-blockTokens {
			b.Lost++
		}
		b.Waited += seconds(a.Waited)
		b.Prefill += seconds(a.Measured.Prefill)
		b.Transfer += seconds(a.Measured.Transfer)
		b.Rest -= seconds(a.Waited + a.Measured.Prefill + a.Measured.Transfer)
		if chosen.Prefill != "" {
			b.PredictedPrefill += seconds(chosen.Queue + chosen.Compute)
			b.PredictedTransfer += seconds(chosen.First - chosen.Queue - chosen.Compute)
		}
	}
	return b
}

func (b breakdown) String() string {
	return fmt.Sprintf("the slowest %d took %.3f s: %.3f until servers were chosen, %.3f in prefill and its queue (predicted %.3f), %.3f for transfer and step (%.3f), %.3f otherwise; decode computed %d alone, %d changed their server without need, %d had less cached than believed, of %d tokens were not known",
		b.Turns, b.TTFT, b.Waited, b.Prefill, b.PredictedPrefill, b.Transfer, b.PredictedTransfer, b.Rest, b.Alone, b.Changed, b.Lost, b.Unknown)
}
