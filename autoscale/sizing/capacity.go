package sizing

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// Capacity is what one server can do, as `tandem calibrate` measures it. Its JSON is
// the file that serve, sim and the planner read.
type Capacity struct {
	Schema int    `json:"schema"` // 1
	Server string `json:"server"` // what was measured, for people
	Model  string `json:"model"`

	// Prefill is seconds of [1, thousands of new tokens, millions of new token x
	// token of context]; Step of [1, sequences, millions of tokens of KV].
	Prefill curve.Curve `json:"prefill"`
	Step    curve.Curve `json:"step"`

	KVTokens     int `json:"kv_tokens"`
	MaxSequences int `json:"max_sequences"` // in one batch; 0: not known

	// What the curves were fitted to; only people need them.
	PrefillPoints []PrefillPoint `json:"prefill_points,omitempty"`
	StepPoints    []StepPoint    `json:"step_points,omitempty"`
	Largest       *Concurrency   `json:"largest_concurrency,omitempty"`
	Lacked        int            `json:"-"` // tokens over the budget that one more look for Largest would have taken
}

// PrefillPoint is the time to the first token of a prompt alone on the server.
type PrefillPoint struct {
	Tokens  int     `json:"tokens"`
	Seconds float64 `json:"seconds"`
}

// StepPoint is the time between two tokens of each of so many sequences.
type StepPoint struct {
	Sequences int     `json:"sequences"`
	KVTokens  int     `json:"kv_tokens"`
	Seconds   float64 `json:"seconds"`
}

// Concurrency is how many sequences of a context were found to decode together
// within an ITL.
type Concurrency struct {
	ITL       float64 `json:"itl_seconds"`
	Context   int     `json:"context_tokens"`
	Sequences int     `json:"sequences"`
}

// PrefillSeconds is the time of a prefill alone on the server.
func (c *Capacity) PrefillSeconds(uncached, cached float64) float64 {
	return c.Prefill.Seconds(curve.PrefillFeatures(int(uncached), int(cached)))
}

// PrefillSpeed is prompt tokens per second at prompts of this size.
func (c *Capacity) PrefillSpeed(uncached, cached float64) float64 {
	return uncached / c.PrefillSeconds(uncached, cached)
}

// MinimumStep is the minimum cycle latency: a decode step of one short sequence.
func (c *Capacity) MinimumStep() time.Duration {
	return c.Step.Time(curve.StepFeatures(1, 0))
}

// Sequences is the largest concurrency: how many sequences of a mean context decode
// together with steps within itl, and with room for their KV. 0 if not even one does.
func (c *Capacity) Sequences(itl time.Duration, context float64) float64 {
	perSequence := c.Step[1] + c.Step[2]*context/1e6
	left := itl.Seconds() - c.Step[0]
	if left < 0 {
		return 0
	}
	within := float64(c.KVTokens) / max(context, 1)
	if perSequence > 0 {
		within = min(within, left/perSequence)
	}
	if c.MaxSequences > 0 {
		within = min(within, float64(c.MaxSequences))
	}
	if within < 1 {
		return 0
	}
	return within
}

// DecodeSpeed is output tokens per second at the largest concurrency, 0 if there is none.
func (c *Capacity) DecodeSpeed(itl time.Duration, context float64) float64 {
	n := c.Sequences(itl, context)
	if n == 0 {
		return 0
	}
	return n / (c.Step[0] + n*(c.Step[1]+c.Step[2]*context/1e6))
}

// Validate reports what is wrong with the capacity, nil if nothing.
func (c *Capacity) Validate() error {
	if c.Schema != 1 {
		return fmt.Errorf("schema %d is not known (known: 1)", c.Schema)
	}
	for _, learned := range []curve.Curve{c.Prefill, c.Step} {
		sum := 0.0
		for _, v := range learned {
			if !(v >= 0) || math.IsInf(v, 0) {
				return errors.New("coefficients of prefill and step must not be negative")
			}
			sum += v
		}
		if sum == 0 {
			return errors.New("a prefill or step that takes no time")
		}
	}
	if c.KVTokens <= 0 || c.MaxSequences < 0 {
		return errors.New("kv_tokens must be positive, max_sequences not negative")
	}
	return nil
}

// ReadCapacity reads the file at path.
func ReadCapacity(path string) (*Capacity, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("capacity: %w", err)
	}
	var c Capacity
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, fmt.Errorf("capacity %s: %w", path, err)
	}
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("capacity %s: %w", path, err)
	}
	return &c, nil
}

// Write writes the file.
func (c *Capacity) Write(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(c)
}
