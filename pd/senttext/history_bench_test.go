package senttext

import (
	"strconv"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
)

// BenchmarkHistory_Prompt220KB: what is done for one prompt of 220 KB in approximate mode: to ask what
// each of 64 + 64 servers holds of it, and to record it on the pair that is chosen. All prompts begin with
// the same 20 KB, which all servers hold; the rest of each is on one pair. Budget: 1.5 us per KB,
// of the 5 that a prompt may take in approximate mode.
func BenchmarkHistory_Prompt220KB(b *testing.B) {
	const servers, prompts = 128, 512
	h, of := New(), Salted{Model: "meta-llama/Llama-3.1-8B-Instruct"}
	var on [servers]Server
	for i := range on {
		on[i] = Server{ID: "vllm-" + strconv.Itoa(i) + ".vllm.default.svc:8000", Class: 7}
	}
	var text [prompts][]tokens.Chunk
	for i := range text {
		for k := range 220_000 / tokens.ChunkBytes {
			chunk := tokens.Chunk(uint64(k+1) * 0x9e3779b97f4a7c15)
			if k >= 80 {
				chunk += tokens.Chunk(i + 1)
			}
			text[i] = append(text[i], chunk)
		}
	}
	b.ReportAllocs()
	defer func() { b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/220, "us/KB") }()
	for n := 0; b.Loop(); n++ {
		prompt := text[n%prompts]
		held := 0
		for _, s := range on {
			held += h.CachedTokens(of, s, prompt)
		}
		for _, s := range [2]Server{on[n%64], on[64+n%64]} {
			h.Record(of, s, 1<<20, prompt, Sighting{Held: time.Now()})
		}
		if n > prompts && held < servers/2*80*ChunkTokens {
			b.Fatalf("%d tokens are held", held)
		}
	}
}
