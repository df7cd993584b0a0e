package cost

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-gateway/tandem/kvstate/cached"
	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// holding is a server that computes a thousand tokens in so many seconds and holds leading ones.
func holding(tokens int, perThousand float64) *Candidate {
	return &Candidate{Cached: cached.Tokens{GPU: tokens}, Prefill: curve.Curve{0.01, perThousand, 0}}
}

func TestPieces_End(t *testing.T) {
	for _, c := range []struct {
		name                string
		pieces              Pieces
		server              *Candidate
		prompt, block, want int
	}{
		{"whole without pieces", 0, holding(0, 0.1), 100_000, 16, 100_000},
		{"whole where the block is not known", DefaultPieces, holding(0, 0.1), 100_000, 0, 100_000},
		{"a prompt of a piece and a quarter is whole", DefaultPieces, holding(0, 0.1), 25_000, 16, 25_000},
		{"a longer one is two equal pieces", DefaultPieces, holding(0, 0.1), 25_100, 16, 12_544},
		{"two seconds of a long prompt", DefaultPieces, holding(0, 0.1), 100_000, 16, 20_000},
		{"a server of twice the speed gets twice as much", DefaultPieces, holding(0, 0.05), 100_000, 16, 40_000},
		{"a slow server gets the least", DefaultPieces, holding(0, 10), 100_000, 16, 2048},
		{"a curve of nothing asks for no piece", DefaultPieces, holding(0, 0), 100_000, 16, 100_000},
		{"what is held is no part of the piece", DefaultPieces, holding(20_000, 0.1), 100_000, 16, 40_000},
		{"cut at a block", DefaultPieces, holding(20_001, 0.1), 100_000, 512, 39_936},
		{"whole where most is held", DefaultPieces, holding(97_000, 0.1), 100_000, 16, 100_000},
		{"and so is what is left", DefaultPieces, holding(74_000, 0.1), 100_000, 16, 86_992},
		{"whole where a block is more than the piece", DefaultPieces, holding(0, 1), 3000, 16_384, 3000},
	} {
		if got := c.pieces.End(c.server, c.prompt, c.block); got != c.want {
			t.Errorf("%s: up to %d, want %d", c.name, got, c.want)
		}
	}
}

// A prompt is cut so that each part is pulled while the next is computed, into as many as are worth the legs and the
// steps that they cost.
func TestModel_Cuts(t *testing.T) {
	m := Default()
	m.KVBytesPerToken, m.HandOff = 100_000, 3*time.Millisecond // 10 us of a link of 10 GB/s for a token
	for _, c := range []struct {
		name           string
		held, has      int
		perByte, fixed float64
		prompt, block  int
		want           []int
		spare          time.Duration
		step           float64 // of decode
	}{
		{"a fifth behind the cut", 0, 0, 2.5e-10, 0.005, 10_000, 16, []int{8032}, 0, 0}, // 1 s of prefill, 0.25 s of transfer
		{"four equal parts where both take as long", 0, 0, 1e-9, 0.005, 10_000, 16, []int{2560, 5088, 7568}, 0, 0},
		{"parts that grow where a transfer takes twice as long", 0, 0, 2e-9, 0.005, 10_000, 16, []int{688, 2048, 4720}, 0, 0},
		{"a part of less than a block is no cut", 0, 0, 2e-9, 0.005, 10_000, 1024, []int{2048, 4096}, 0, 0},
		{"what moves fast is cut late", 0, 0, 1e-10, 0.005, 10_000, 16, []int{9136}, 0, 0},
		{"earlier where decode takes steps of 50 ms for a pull", 0, 0, 1e-9, 0.005, 10_000, 16, []int{1072, 3088, 6064}, 0, 0.05},
		{"whole where decode lacks little", 0, 9000, 1e-10, 0.005, 10_000, 16, nil, 0, 0},
		{"what prefill holds takes no time", 5000, 0, 1e-10, 0.005, 10_000, 16, []int{9136}, 0, 0},
		{"whole where decode has all", 0, 10_000, 1e-9, 0.005, 10_000, 16, nil, 0, 0},
		{"whole where a transfer takes 0.02 s", 0, 0, 1e-10, 0.005, 2000, 16, nil, 0, 0},
		{"whole where little is computed before it", 9400, 0, 1e-10, 0.005, 10_000, 16, nil, 0, 0},
		{"whole where a step takes as long", 0, 0, 1e-10, 0.05, 10_000, 16, nil, 0, 0},
		{"whole where the block is not known", 0, 0, 1e-10, 0.005, 10_000, 0, nil, 0, 0},
		{"once where most of the rest need not be hidden", 0, 0, 2.5e-10, 0.005, 10_000, 16, []int{8032}, 40 * time.Millisecond, 0},
		{"whole where none need be", 0, 0, 2.5e-10, 0.005, 10_000, 16, nil, 240 * time.Millisecond, 0},
	} {
		from, to := holding(c.held, 0.1), holding(c.has, 0.1)
		from.Prefill[0], to.nextStep = c.fixed, c.step
		links := order.NewLinkTable(1, 1)
		links.SecondsPerByte[0] = c.perByte
		f := Candidates{Prefill: []Candidate{*from}, Decode: []Candidate{*to}, Links: links}
		if got := m.Cuts(&f, 0, 0, c.prompt, c.block, c.spare); !slices.Equal(got, c.want) {
			t.Errorf("%s: cut at %d, want %d", c.name, got, c.want)
		}
	}
}

// Any prompt is done after a bounded number of pieces, each of which ends with a block.
func TestPieces_End_ComesToTheEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pieces := Pieces(rapid.Int64Range(0, int64(10*time.Second)).Draw(t, "pieces"))
		prompt, block := rapid.IntRange(1, 300_000).Draw(t, "prompt"), rapid.IntRange(1, 1024).Draw(t, "block")
		server := holding(rapid.IntRange(0, prompt-1).Draw(t, "held"), rapid.Float64Range(0, 2).Draw(t, "perThousand"))
		for n := 0; server.Cached.GPU < prompt; n++ {
			held, end := server.Cached.GPU, pieces.End(server, prompt, block)
			if end <= held || end > prompt || end < prompt && end%block != 0 || n > 300 {
				t.Fatalf("behind %d of %d tokens up to %d, blocks of %d", held, prompt, end, block)
			}
			server.Cached.GPU = end
		}
	})
}

// Wherever a prompt is cut, each part ends with a block behind the one before it, and within the prompt.
func TestModel_Cuts_AreInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := Default()
		m.KVBytesPerToken = rapid.IntRange(1, 1_000_000).Draw(t, "bytes")
		prompt, block := rapid.IntRange(1, 300_000).Draw(t, "prompt"), rapid.IntRange(1, 1024).Draw(t, "block")
		from := holding(rapid.IntRange(0, prompt).Draw(t, "held"), rapid.SampledFrom([]float64{0, 0.001, 0.1, 2}).Draw(t, "perThousand"))
		to := holding(rapid.IntRange(0, prompt).Draw(t, "has"), 0.1)
		to.nextStep = rapid.SampledFrom([]float64{0, 0.02, 1}).Draw(t, "step")
		links := order.NewLinkTable(1, 1)
		links.SecondsPerByte[0] = rapid.SampledFrom([]float64{0, 1e-11, 1e-10, 1e-8}).Draw(t, "perByte")
		f := Candidates{Prefill: []Candidate{*from}, Decode: []Candidate{*to}, Links: links}
		before := from.Cached.GPU
		for _, end := range m.Cuts(&f, 0, 0, prompt, block, time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "spare"))) {
			if end <= before || end >= prompt || end%block != 0 {
				t.Fatalf("cut at %d of %d tokens behind %d, blocks of %d", end, prompt, before, block)
			}
			before = end
		}
	})
}
