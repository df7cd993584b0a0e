package vllm

import "testing"

// TestPair: one prefill and one decode server, which take half a minute to start, behind a gateway for each part.
func TestPair(t *testing.T) {
	p, d := launch(t, "prefill", "--enable-scale-out"), launch(t, "decode") // prefill renders
	p.waitUntilUp(t)
	d.waitUntilUp(t)
	t.Run("Steps", func(t *testing.T) { shareSteps(t, p, d) })
	t.Run("Pieces", func(t *testing.T) { prefillPieces(t, p, d) })
	t.Run("Fetch", func(t *testing.T) { fetchesKV(t, p, d) })
	t.Run("DecodePieces", func(t *testing.T) { decodePieces(t, d) })
	t.Run("Learned", func(t *testing.T) { learnsTokens(t, p, d) })
	t.Run("Whole", func(t *testing.T) { countsPrefills(t, d) })
}
