package mix

import (
	"time"

	"github.com/tandem-gateway/tandem/autoscale/demand"
	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pools/share"
)

// Allocator chooses of which hardware the wanted servers are.
type Allocator func(AllocationRequest) (HardwareAllocation, error)

// AllocationRequest is work to be spread over kinds of hardware.
type AllocationRequest struct {
	Prompt, Computed, Output float64        // tokens of a mean request
	Context                  float64        // tokens of KV of a sequence, as a decode server sees it at any moment
	PrefillRate              float64        // prompt tokens per second to compute
	DecodeRate               float64        // output tokens per second
	TTFT, ITL                time.Duration  // objectives; no TTFT is 0
	Traffic                  demand.Traffic // what the requests consist of
	Running                  []RunningUnits // what there is
	// Current is the spread that holds: kept as long as it does. nil: the wanted numbers
	// have changed.
	Current *HardwareAllocation
}

// HardwareAllocation is how many units of each variant are wanted.
type HardwareAllocation struct {
	Prefill map[string]int `json:"prefill"`
	Decode  map[string]int `json:"decode"`
	Prices  []Price        `json:"prices,omitempty"`
	// Shares say which requests the hardware that runs is to serve; nil: any.
	Shares *share.Table `json:"-"`
}

// Price is the shadow price of a variant's capacity: what an hour would cost less with one
// more server's worth of it.
type Price struct {
	Variant string  `json:"variant"`
	What    string  `json:"what"` // prefill, decode, kv, sequences, gpus
	PerHour float64 `json:"per_hour"`
}

// RunningUnits is the units of one role and variant that run.
type RunningUnits struct {
	Variant  string
	Prefills bool // they prefill only
	Units    int
	Teach    func(*sizing.Capacity) // makes what units have shown the capacity of one
}
