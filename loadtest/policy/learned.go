package policy

// learned is what a gateway has found out by itself, from prefill's answers and
// the tokens of the streams. All policies may use it.
type learned struct {
	outputs weighted   // tokens of an answer
	speeds  []weighted // seconds of prefill for each second predicted, by server
}

// weighted is a mean with forgetting: what was seen n samples ago counts
// keep^n as much.
type weighted struct{ sum, weight float64 }

func (w *weighted) add(value, weight, keep float64) {
	w.sum = w.sum*keep + value
	w.weight = w.weight*keep + weight
}

func (w *weighted) mean() float64 { return w.sum / w.weight }

const (
	priorOutput  = 256.0 // tokens, until answers have ended
	keepOutputs  = 0.998 // some 500 answers
	keepSpeeds   = 0.96  // some 25 prefills
	priorPrefill = 5.0   // seconds of prefill at nominal speed, taken as seen at the start
)

func newLearned(s *Scenario) *learned {
	l := &learned{outputs: weighted{sum: priorOutput, weight: 1}, speeds: make([]weighted, s.Prefill)}
	for p := range l.speeds {
		l.speeds[p] = weighted{sum: priorPrefill, weight: priorPrefill}
	}
	return l
}

func (l *learned) output(tokens int) { l.outputs.add(float64(tokens), 1, keepOutputs) }

// speed learns from one prefill that took served seconds by itself and was
// predicted to take nominal. The ratio of sums is right also where one step
// finishes several prompts and the first to answer bears it all.
func (l *learned) speed(p int, served, nominal float64) {
	l.speeds[p].add(served, nominal, keepSpeeds)
}
