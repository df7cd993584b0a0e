package compare

import "fmt"

// What requests are judged by, in the engines' seconds. Of the gap the gateway is told too, since the simulator's
// policies know it.
const sloTTFT, sloITL = 5.0, 0.1

// PieceSeconds is what a piece of a prompt takes its engine, in its own seconds: the default of --prefill-pieces, by
// which the simulator cuts.
const PieceSeconds = 2.0

// Scenario is the cluster as the simulator describes one (YAML). The times are the
// simulated engine's (loadtest/engine/timing.go), as near as the simulator's form of
// them comes: a decode step's polynomial of the KV in use is taken as the line nearest to it
// from a tenth to seven tenths of the cache (1.2 ms off at most). A step that computes prompts
// takes what it does on a prefill server, and the decode step besides. Each engine has an uplink
// of its own, and decode takes what fits without its answer, as vLLM does.
func Scenario(s *Shape) []byte {
	capacity := 16 * s.Blocks
	racks := func(servers int) string {
		list := ""
		for rack := range s.Racks {
			list += fmt.Sprintf("%d, ", (servers-rack+s.Racks-1)/s.Racks)
		}
		return "[" + list[:len(list)-2] + "]"
	}
	return fmt.Appendf(nil, `name: live
title: the simulated engines of tandem-lab live
hardware:
  name: simulated engine
  kv_bytes_per_token: %d
  prefill_base_seconds: 0
  prefill_step_seconds: 0.0165
  prefill_flops_per_token: 1.518e-5  # of a machine that does one a second
  prefill_flops_per_square: 4.21e-10
  prefill_flops_per_second: 1
  prefill_tokens_per_step: 8192
  prefill_kv_tokens: %d
  decode_base_seconds: 0.0087
  decode_seconds_per_sequence: 0
  decode_seconds_per_kv_token: %g
  decode_prefill_step_seconds: 0.0165
  decode_kv_tokens: %d
  decode_tokens_per_step: 8192
  decode_sequences: 256
  nic_bytes_per_second: %g
  handoff_seconds: %g
prefill: %d
decode: %d
prefill_racks: %s
decode_racks: %s
own_uplink: %g
round_trip: 0  # loopback, and within the hand-off
overlap: false
noise: 0.02
speedup: %g
slo: {ttft: %g, itl: %g}
`, s.KVBytesPerToken, capacity, 0.0334/float64(capacity), capacity, s.Link, 0.002/s.Scale, s.Prefill, s.Decode,
		racks(s.Prefill), racks(s.Decode), s.Uplink, s.Speedup, sloTTFT, sloITL)
}
