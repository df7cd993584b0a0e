package policy

import "errors"

// Hardware is how fast the servers of a scenario are: one model on one kind of
// machine. Work is in floating point operations.
type Hardware struct {
	Name            string  `yaml:"name"`
	KVBytesPerToken float64 `yaml:"kv_bytes_per_token"`

	PrefillBase       float64 `yaml:"prefill_base_seconds"`        // once a request
	PrefillStep       float64 `yaml:"prefill_step_seconds"`        // once a step of the engine
	PrefillPerToken   float64 `yaml:"prefill_flops_per_token"`     // of n new tokens
	PrefillPerSquare  float64 `yaml:"prefill_flops_per_square"`    // of (n+c)^2 - c^2, c cached
	PrefillRate       float64 `yaml:"prefill_flops_per_second"`    // that the server reaches
	PrefillTokens     int     `yaml:"prefill_tokens_per_step"`     // token budget of a step
	PrefillCapacity   int     `yaml:"prefill_kv_tokens"`           // KV memory
	DecodeBase        float64 `yaml:"decode_base_seconds"`         // of a step
	DecodePerSequence float64 `yaml:"decode_seconds_per_sequence"` // added by each sequence
	DecodePerContext  float64 `yaml:"decode_seconds_per_kv_token"` // added by each token of context
	DecodePrefillStep float64 `yaml:"decode_prefill_step_seconds"` // added to a step that computes prompts too, beside their work
	DecodeCapacity    int     `yaml:"decode_kv_tokens"`            // KV memory
	DecodeTokens      int     `yaml:"decode_tokens_per_step"`      // prompt tokens that a decode server computes in one step
	DecodeSequences   int     `yaml:"decode_sequences"`            // largest batch of a server
	NIC               float64 `yaml:"nic_bytes_per_second"`        // of each server, each way
	HandOff           float64 `yaml:"handoff_seconds"`             // from prefill's answer to decode's engine, beside the round trip
}

// work is the time of the forward pass over the tokens from cached to upTo.
func (h *Hardware) work(cached, upTo int) float64 {
	from, to := float64(cached), float64(upTo)
	return (h.PrefillPerToken*(to-from) + h.PrefillPerSquare*(to*to-from*from)) / h.PrefillRate
}

// prefill is the time of a whole prefill with the server to itself.
func (h *Hardware) prefill(prompt, cached int) float64 {
	cached = min(cached, prompt-1)
	steps := (prompt - cached + h.PrefillTokens - 1) / h.PrefillTokens
	return h.PrefillBase + float64(steps)*h.PrefillStep + h.work(cached, prompt)
}

// step is the time of one decode step.
func (h *Hardware) step(sequences, context int) float64 {
	return h.DecodeBase + h.DecodePerSequence*float64(sequences) + h.DecodePerContext*float64(context)
}

func (h *Hardware) check() error {
	positive := h.KVBytesPerToken > 0 && h.PrefillPerToken > 0 && h.PrefillRate > 0 && h.PrefillTokens > 0 &&
		h.PrefillCapacity > 0 && h.DecodeBase > 0 && h.DecodeCapacity > 0 && h.DecodeTokens > 0 && h.DecodeSequences > 0 && h.NIC > 0
	if !positive || h.PrefillBase < 0 || h.PrefillStep < 0 || h.PrefillPerSquare < 0 ||
		h.DecodePerSequence < 0 || h.DecodePrefillStep < 0 || h.DecodePerContext < 0 || h.HandOff < 0 {
		return errors.New("hardware: capacities, rates and the decode base must be positive, nothing negative")
	}
	return nil
}
