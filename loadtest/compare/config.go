package compare

import (
	"errors"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/process"
)

// Config is one comparison.
type Config struct {
	From    process.Programs
	Load    string // what the trace is, for people
	Trace   string // Mooncake JSONL
	Limit   int    // requests of it, from the start
	Rounds  int    // runs of each policy, by turns
	Shape   Shape
	Ways    []Way
	LogPath string // of what the processes say; "" drops it
}

// Shape is the cluster, and how the trace meets it.
type Shape struct {
	Prefill int     `json:"prefill"` // servers, by turns in the racks
	Decode  int     `json:"decode"`
	Racks   int     `json:"racks"`
	Scale   float64 `json:"time_scale"` // of the engines' time
	Speedup float64 `json:"speedup"`    // of the trace's arrivals, in the engines' time

	KVBytesPerToken int     `json:"kv_bytes_per_token"`
	Link            float64 `json:"link_bytes_per_second"`   // of each server
	Uplink          float64 `json:"uplink_bytes_per_second"` // of each server to other racks
	Blocks          int     `json:"blocks"`                  // of 16 tokens, of each server
}

// DefaultShape is scenario "live" of the simulator: 70B-like KV over links that are
// fast within a rack and slow between racks.
func DefaultShape() Shape {
	return Shape{
		Prefill: 4, Decode: 4, Racks: 2, Scale: 0.3, Speedup: 2.6,
		KVBytesPerToken: 327680, Link: 12.5e9, Uplink: 3e9, Blocks: 32768,
	}
}

// Way is settings of the gateway that are compared with others.
type Way struct {
	Name      string   `json:"name"`
	Simulated string   `json:"simulated"` // the policy of the simulator that does the same, "" for none
	Flags     []string `json:"flags"`     // of serve
	Priority  bool     `json:"priority"`  // the engines schedule by priority
}

// Ways are those that the gateway knows. All but one compute prompts whole, on decode servers too, as the simulator's
// policies of those names do.
func Ways() []Way {
	ways := []Way{
		{Name: "random", Simulated: "gateway-random", Flags: []string{"--policy", "random", "--binding", "arrival"}},
		{Name: "least-load", Simulated: "gateway-least-load", Flags: []string{"--policy", "least-load", "--binding", "arrival"}},
		{Name: "prefill-first", Simulated: "gateway-prefill-first", Flags: []string{"--policy", "prefill-first", "--binding", "arrival"}},
		{Name: "joint, on arrival", Simulated: "tandem-arrival", Flags: []string{"--policy", "joint", "--binding", "arrival"}},
		{Name: "joint, engine key", Simulated: "tandem-key", Flags: []string{"--policy", "joint", "--binding", "arrival", "--engine-priority"}, Priority: true},
		{Name: "joint, late", Simulated: "tandem-late", Flags: []string{"--policy", "joint", "--binding", "late"}},
		{Name: "joint, late, pieces", Simulated: "tandem-pieces", Flags: []string{"--policy", "joint", "--binding", "late"}},
		{Name: "joint, late, key", Flags: []string{"--policy", "joint", "--binding", "late", "--engine-priority"}, Priority: true},
	}
	for i := range ways {
		if w := &ways[i]; w.Simulated != "tandem-pieces" {
			w.Flags = append(w.Flags, "--prefill-pieces", "0s", "--decode-pieces", "0s")
		}
	}
	return ways
}

func (c *Config) validate() error {
	s := &c.Shape
	switch {
	case c.From == (process.Programs{}) || c.Trace == "" || len(c.Ways) == 0:
		return errors.New("programs, a trace and something to compare are needed")
	case c.Limit < 1 || c.Rounds < 1:
		return errors.New("requests and rounds must be positive")
	case s.Prefill < 1 || s.Decode < 1 || s.Racks < 1 || s.Blocks < 1 || s.KVBytesPerToken < 1:
		return errors.New("servers, racks, blocks and KV bytes must be positive")
	case !(s.Scale > 0 && s.Speedup > 0 && s.Link > 0 && s.Uplink > 0):
		return errors.New("scale, speed-up and links must be positive")
	}
	return nil
}

// startTime is how long servers may take to come up.
const startTime = 30 * time.Second
