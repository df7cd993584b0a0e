package history

import (
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// Counts are what was counted in each step. Those of several gateways add up, as percentiles and
// means do not: its JSON is what a gateway tells another one of its history.
type Counts struct {
	last  int64 // number of the newest step
	steps [Steps]step
}

// NewCounts are those of nothing, up to the step that contains now.
func NewCounts(now time.Time) *Counts { return &Counts{last: numberOf(now)} }

// add adds what happened in a step to the step of a number, if it is one of the counts'.
func (c *Counts) add(s *step, number int64) {
	if ago := c.last - number; ago >= 0 && ago < Steps {
		c.steps[Steps-1-ago].merge(s)
	}
}

// Add adds the counts of another gateway, whose clock is behind by so much; ahead where it is negative.
func (c *Counts) Add(other *Counts, behind time.Duration) {
	shift := int64(math.Round(behind.Seconds() / Step.Seconds()))
	for i := range other.steps {
		c.add(&other.steps[i], other.last-int64(Steps-1-i)+shift)
	}
}

// Lately are the counts of the last minute alone.
func (c *Counts) Lately() *Counts {
	of := &Counts{last: c.last}
	copy(of.steps[Steps-lately:], c.steps[Steps-lately:])
	return of
}

// View is what the counts say of each step, and of the last minute together.
func (c *Counts) View() View {
	v := View{Points: make([]Point, Steps)}
	var all step
	for i := range c.steps {
		v.Points[i] = c.steps[i].point()
		v.Points[i].Start = time.Unix((c.last-Steps+1+int64(i))*int64(Step/time.Second), 0)
		if i >= Steps-lately {
			all.merge(&c.steps[i])
		}
	}
	v.Lately = all.point()
	v.Lately.Start = v.Points[Steps-lately].Start
	return v
}

// countsJSON has the steps in which something happened.
type countsJSON struct {
	Last  int64  `json:"last"`
	Steps []step `json:"steps"`
}

// MarshalJSON writes the steps in which something happened.
func (c *Counts) MarshalJSON() ([]byte, error) {
	out := countsJSON{Last: c.last, Steps: []step{}}
	for i := range c.steps {
		if s := c.steps[i]; s != (step{}) {
			s.Number = c.last - int64(Steps-1-i)
			out.Steps = append(out.Steps, s)
		}
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON of another gateway has written.
func (c *Counts) UnmarshalJSON(text []byte) error {
	var in countsJSON
	if err := json.Unmarshal(text, &in); err != nil {
		return fmt.Errorf("read the counts of a history: %w", err)
	}
	*c = Counts{last: in.Last}
	for i := range in.Steps {
		c.add(&in.Steps[i], in.Steps[i].Number)
	}
	return nil
}

// MarshalJSON writes the number of the first bin that holds something, and the counts from it on to
// the last one.
func (h histogram) MarshalJSON() ([]byte, error) {
	first, end := 0, len(h)
	for first < end && h[first] == 0 {
		first++
	}
	for end > first && h[end-1] == 0 {
		end--
	}
	return json.Marshal(append([]uint32{uint32(first)}, h[first:end]...))
}

// UnmarshalJSON reads what MarshalJSON has written.
func (h *histogram) UnmarshalJSON(text []byte) error {
	var in []uint32
	if err := json.Unmarshal(text, &in); err != nil {
		return fmt.Errorf("read a histogram: %w", err)
	}
	*h = histogram{}
	if len(in) == 0 {
		return nil
	}
	if first := int(in[0]); first > bins || len(in)-1 > bins-first {
		return fmt.Errorf("a histogram of %d bins from bin %d on has more than %d", len(in)-1, first, bins)
	}
	copy(h[in[0]:], in[1:])
	return nil
}
