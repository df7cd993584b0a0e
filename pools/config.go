package pools

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/pools/breaker"
	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/load"
)

// Config is how servers are watched and ejected.
type Config struct {
	ProbeInterval time.Duration // between two probes of one server
	ProbeTimeout  time.Duration // after which a probe is late
	EjectShare    float64       // of a pool that may be ejected softly, 0..1
	SlowStart     time.Duration // longest ramp of a server that returns; 0 is none
	ORCA          string        // format in which prefill legs ask for the server's load: TEXT, JSON or BIN; empty: they do not
	LoadTables    []load.Table  // how engines report their load
	Adapters      AdapterConfig
	Sleep         SleepConfig
	Breaker       breaker.Config
	Prefill       curve.Curve // assumed of a server until it has shown its own, by PrefillFeatures
	Step          curve.Curve // likewise, by StepFeatures
	// Measured: the two curves were measured of such servers. Else they are a guess, and no request is
	// refused for what they predict.
	Measured bool
	// StepTokens is how many prompt tokens a server computes in one step at most: the engine's
	// max_num_batched_tokens. Prompts that fit into one step take its fixed part once.
	StepTokens int
	// Forgetting is the time without a sample in which what a server has shown of its speed
	// loses half its weight to what its peers have.
	Forgetting time.Duration
	// AwaitAddresses: a server is first probed when its names were looked up, or could not be.
	AwaitAddresses bool
}

// Default returns the configuration that a deployment should start from. The
// prefill curve is that of Dynamo's mocker (ai-dynamo/dynamo
// lib/mocker/src/common/perf_model.rs: 16.5 ms + 0.0152 ms n + 4.2e-7 ms n^2), the
// step that of a mid-sized dense model (6 ms + 0.35 ms a sequence + 10 ns a token
// of KV). They only matter until servers have shown their own.
func Default() Config {
	return Config{
		ProbeInterval: time.Second,
		ProbeTimeout:  2 * time.Second,
		EjectShare:    0.5,
		SlowStart:     10 * time.Second,
		ORCA:          "TEXT",
		LoadTables:    load.DefaultTables(),
		Adapters:      DefaultAdapters(),
		Sleep:         DefaultSleep(),
		Breaker:       breaker.Default(),
		Prefill:       curve.Curve{0.0165, 0.015184, 0.00042099},
		Step:          curve.Curve{0.006, 0.00035, 0.01},
		StepTokens:    8192, // vLLM's and SGLang's usual budget on large GPUs
		Forgetting:    time.Minute,
	}
}

// Validate reports what is wrong with the configuration, nil if nothing.
func (c Config) Validate() error {
	switch {
	case c.ProbeInterval <= 0 || c.ProbeTimeout <= 0:
		return fmt.Errorf("probe-interval and probe-timeout must be positive")
	case c.EjectShare < 0 || c.EjectShare > 1:
		return fmt.Errorf("eject-share %v: want 0 to 1", c.EjectShare)
	case !slices.Contains([]string{"", "TEXT", "JSON", "BIN"}, c.ORCA):
		return fmt.Errorf("orca %q: want TEXT, JSON, BIN or nothing", c.ORCA)
	case c.Forgetting <= 0:
		return fmt.Errorf("forgetting must be positive")
	case c.SlowStart < 0:
		return fmt.Errorf("slow-start must not be negative")
	}
	return errors.Join(c.Breaker.Validate(), c.Adapters.Validate(), c.Sleep.Validate())
}

// ValidateSpecs reports what is wrong with a fleet, nil if nothing.
func ValidateSpecs(specs []Spec) error {
	named := make(map[string]bool, len(specs))
	for _, s := range specs {
		if err := s.Validate(); err != nil {
			return err
		}
		id := s.ID()
		if named[id] {
			return fmt.Errorf("server %s is named twice; one that does both is named under both", id)
		}
		named[id] = true
	}
	return nil
}
