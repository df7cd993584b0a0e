package engine

import "testing"

// Vectors of vLLM's sha256_cbor, block size 16 (the last 8 bytes as a number).
func TestHashBlock_EqualsThePublishedFormula(t *testing.T) {
	first, second := make([]int32, 16), make([]int32, 16)
	for i := range first {
		first[i], second[i] = int32(i+1), int32(i+17)
	}
	for _, c := range []struct {
		seed                        string
		first, second, firstAdapted uint64
	}{
		{"0", 3236607068019569386, 2758186210834249151, 15444946753610453501},
		{"42", 16300212363532267629, 8671309795006503672, 7504927521013331450},
		{"vllm-none-hash", 8866452693264111234, 807986237951177663, 5008547783079794540},
	} {
		root := rootHash(c.seed)
		h1 := hashBlock(root, first, nil)
		if h1.number() != c.first {
			t.Errorf("seed %q, tokens 1..16: %d, want %d", c.seed, h1.number(), c.first)
		}
		if h2 := hashBlock(h1, second, nil); h2.number() != c.second {
			t.Errorf("seed %q, tokens 17..32: %d, want %d", c.seed, h2.number(), c.second)
		}
		if h := hashBlock(root, first, []string{"my-lora"}); h.number() != c.firstAdapted {
			t.Errorf("seed %q, adapter: %d, want %d", c.seed, h.number(), c.firstAdapted)
		}
	}
}
