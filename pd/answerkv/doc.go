// Package answerkv remembers which answers' KV decode servers keep for the next turn's prefill, and
// says which of it a prompt goes on behind.
//
// vLLM with bidirectional_kv_xfer ends a decode with a hand-off of its own: prompt and answer stay
// in its memory for decoder_kv_blocks_ttl, and the next prefill may read them (0.33,
// nixl/pull_scheduler.py). It does not compare the prompt with the tokens that it reads. So here
// every id is compared, a hand-off is given out once and within its time, and only whole blocks
// that prompt and answer share count. The package is pure: what is read and what it costs is pd's
// business.
package answerkv
