package history

import (
	"sync"
	"time"
)

// Parts are what the time to a first token went to, from the request's arrival on.
type Parts struct {
	Wait     time.Duration // in the gateway's queue
	Retry    time.Duration // to look for tokens and choose, and for attempts that failed
	Prefill  time.Duration
	Transfer time.Duration // from sending decode to its first content event
	// Together is prefill and transfer, where the engines do both at once and none says when the
	// first was done; Aggregated is decode that computed the prompt itself.
	Together, Aggregated time.Duration
}

// Total is the time to the first token.
func (p *Parts) Total() time.Duration {
	return p.Wait + p.Retry + p.Prefill + p.Transfer + p.Together + p.Aggregated
}

func (p *Parts) add(other *Parts) {
	p.Wait += other.Wait
	p.Retry += other.Retry
	p.Prefill += other.Prefill
	p.Transfer += other.Transfer
	p.Together += other.Together
	p.Aggregated += other.Aggregated
}

func (p *Parts) mean(n int) Parts {
	if n == 0 {
		return Parts{}
	}
	each := time.Duration(n)
	return Parts{p.Wait / each, p.Retry / each, p.Prefill / each, p.Transfer / each, p.Together / each, p.Aggregated / each}
}

// Prompt is how much of a prompt was cached, in tokens.
type Prompt struct {
	Tokens    int  // of the prompt, as the engine counted them
	Predicted int  // that the server which computed it was known to hold when it was chosen
	Cached    int  // that were in its cache, as the engine says
	Reported  bool // the engine says
}

// step is what happened in one step. Its fields are what another gateway reads of it.
type step struct {
	Number              int64         `json:"number"`          // since 1970; a step of another number holds nothing
	First               int           `json:"first,omitempty"` // first tokens
	Parts               Parts         `json:"parts,omitzero"`  // summed over them
	TTFT                histogram     `json:"ttft,omitzero"`
	Gaps                histogram     `json:"gaps,omitzero"`
	GapSum              time.Duration `json:"gap_sum,omitempty"`
	GapCount            int           `json:"gap_count,omitempty"`
	Answers             int           `json:"answers,omitempty"`
	Failed              int           `json:"failed,omitempty"`
	Prompt              int64         `json:"prompt,omitempty"` // tokens
	Predicted           int64         `json:"predicted,omitempty"`
	ReportedOf          int64         `json:"reported_of,omitempty"` // tokens, of prompts whose engine reports what was cached
	Cached              int64         `json:"cached,omitempty"`
	Output              int64         `json:"output,omitempty"`
	PredictedOfReported int64         `json:"predicted_of_reported,omitempty"`
}

func (s *step) merge(o *step) {
	s.First += o.First
	s.Parts.add(&o.Parts)
	s.TTFT.merge(&o.TTFT)
	s.Gaps.merge(&o.Gaps)
	s.GapSum += o.GapSum
	s.GapCount += o.GapCount
	s.Answers += o.Answers
	s.Failed += o.Failed
	s.Prompt += o.Prompt
	s.Predicted += o.Predicted
	s.ReportedOf += o.ReportedOf
	s.Cached += o.Cached
	s.Output += o.Output
	s.PredictedOfReported += o.PredictedOfReported
}

// Point is what happened in one step, or in several together.
type Point struct {
	Start            time.Time
	First            int   // first tokens
	Parts            Parts // of the time to them, on the mean
	TTFT50, TTFT99   time.Duration
	Gaps             int // between tokens
	ITLMean          time.Duration
	ITL50, ITL99     time.Duration
	Answers, Failed  int   // answers that ended, and requests that failed before their first token
	Prompt, Output   int64 // tokens of the answered
	Predicted        int64 // prompt tokens that were believed to be cached
	ReportedOf       int64 // prompt tokens of engines that report what was cached
	Cached           int64 // of these, tokens that were
	PredictedOfThese int64 // of ReportedOf, tokens that were believed to be cached
}

func (s *step) point() Point {
	p := Point{
		First: s.First, Parts: s.Parts.mean(s.First), TTFT50: s.TTFT.quantile(.5), TTFT99: s.TTFT.quantile(.99),
		Gaps: s.GapCount, ITL50: s.Gaps.quantile(.5), ITL99: s.Gaps.quantile(.99), Answers: s.Answers, Failed: s.Failed,
		Prompt: s.Prompt, Output: s.Output, Predicted: s.Predicted, ReportedOf: s.ReportedOf, Cached: s.Cached, PredictedOfThese: s.PredictedOfReported,
	}
	if s.GapCount > 0 {
		p.ITLMean = s.GapSum / time.Duration(s.GapCount)
	}
	return p
}

// Series is the history of one model. nil records nothing.
type Series struct {
	mu       sync.Mutex // guards the rest
	steps    [Steps]step
	recorded time.Time // when something was recorded last, or else it was made
	moved    *Series   // has what was here, and takes what is recorded here: what holds this one goes on with it
}

// lock locks the series that takes what is recorded, and returns it.
func (s *Series) lock() *Series {
	s.mu.Lock()
	moved := s.moved
	if moved == nil {
		return s
	}
	s.mu.Unlock()
	return moved.lock()
}

func (s *Series) lastRecorded() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.recorded
}

// moveTo gives another series what is recorded here, and will be.
func (s *Series) moveTo(other *Series) {
	s.mu.Lock()
	defer s.mu.Unlock()
	other.mu.Lock()
	defer other.mu.Unlock()
	for i := range s.steps {
		from, to := &s.steps[i], &other.steps[i]
		switch {
		case from.Number == to.Number:
			to.merge(from)
		case from.Number > to.Number:
			*to = *from
		}
	}
	clear(s.steps[:])
	s.moved = other
}

// at is the step that contains a time, empty where an older one was in its place. The mutex is held.
func (s *Series) at(now time.Time) *step {
	s.recorded = now
	n := numberOf(now)
	st := &s.steps[n%Steps]
	if st.Number != n {
		*st = step{Number: n}
	}
	return st
}

// RecordFirst records a first token.
func (s *Series) RecordFirst(p Parts, now time.Time) {
	if s == nil {
		return
	}
	s = s.lock()
	defer s.mu.Unlock()
	st := s.at(now)
	st.First++
	st.Parts.add(&p)
	st.TTFT.add(p.Total())
}

// RecordGaps records gaps between the tokens of a stream.
func (s *Series) RecordGaps(gaps []time.Duration, now time.Time) {
	if s == nil || len(gaps) == 0 {
		return
	}
	s = s.lock()
	defer s.mu.Unlock()
	st := s.at(now)
	for _, gap := range gaps {
		st.Gaps.add(gap)
		st.GapSum += gap
	}
	st.GapCount += len(gaps)
}

// RecordAnswer records that an answer has ended.
func (s *Series) RecordAnswer(p Prompt, outputTokens int, now time.Time) {
	if s == nil {
		return
	}
	s = s.lock()
	defer s.mu.Unlock()
	st := s.at(now)
	st.Answers++
	st.Prompt += int64(p.Tokens)
	st.Predicted += int64(p.Predicted)
	st.Output += int64(outputTokens)
	if p.Reported {
		st.ReportedOf += int64(p.Tokens)
		st.Cached += int64(p.Cached)
		st.PredictedOfReported += int64(p.Predicted)
	}
}

// RecordFailure records a request that failed.
func (s *Series) RecordFailure(now time.Time) {
	if s == nil {
		return
	}
	s = s.lock()
	defer s.mu.Unlock()
	s.at(now).Failed++
}

// addTo adds the steps that the counts span to them.
func (s *Series) addTo(c *Counts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.steps {
		c.add(&s.steps[i], s.steps[i].Number)
	}
}
