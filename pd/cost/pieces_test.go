package cost

import (
	"testing"

	"pgregory.net/rapid"
)

func TestPieces_End(t *testing.T) {
	for _, c := range []struct {
		name                     string
		pieces                   Pieces
		prompt, held, block, end int
	}{
		{"whole without pieces", 0, 100_000, 0, 16, 100_000},
		{"whole where the block is not known", DefaultPieces, 100_000, 0, 0, 100_000},
		{"a short prompt is whole", DefaultPieces, 4095, 0, 16, 4095},
		{"a short last piece", DefaultPieces, 4200, 0, 16, 2144},
		{"a long prompt", DefaultPieces, 100_000, 0, 16, 8192},
		{"what is held is no part of the piece", DefaultPieces, 100_000, 20_000, 16, 28_192},
		{"cut at a block", DefaultPieces, 100_000, 20_001, 512, 28_160},
		{"whole where most is held", DefaultPieces, 100_000, 97_000, 16, 100_000},
		{"what is left is one piece and the last", DefaultPieces, 100_000, 88_000, 16, 97_952},
		{"whole where a block is more than the piece", DefaultPieces, 12_000, 0, 16_384, 12_000},
	} {
		if end := c.pieces.End(c.prompt, c.held, c.block); end != c.end {
			t.Errorf("%s: up to %d, want %d", c.name, end, c.end)
		}
	}
}

// Any prompt is done after a bounded number of pieces, each of which ends with a block.
func TestPieces_End_ComesToTheEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pieces := Pieces(rapid.IntRange(0, 20_000).Draw(t, "tokens"))
		prompt, block := rapid.IntRange(1, 300_000).Draw(t, "prompt"), rapid.IntRange(1, 1024).Draw(t, "block")
		held := rapid.IntRange(0, prompt-1).Draw(t, "held")
		for held < prompt {
			end := pieces.End(prompt, held, block)
			if end <= held || end > prompt || end < prompt && end%block != 0 {
				t.Fatalf("behind %d of %d tokens up to %d, blocks of %d", held, prompt, end, block)
			}
			held = end
		}
	})
}
