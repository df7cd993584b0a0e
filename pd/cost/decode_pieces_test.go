package cost

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// A prompt comes to its end, each piece but the last ends with a block, and none takes longer than a
// piece may, but for the one block that it has at least.
func TestDecodePieces_End(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := DecodePieces{
			Seconds: rapid.Float64Range(0.01, 0.5).Draw(t, "seconds"),
			curve:   curve.Curve{0.01, rapid.Float64Range(0, 1).Draw(t, "perThousand"), rapid.Float64Range(0, 0.01).Draw(t, "perSquare")},
			block:   rapid.IntRange(1, 512).Draw(t, "block"),
		}
		prompt := rapid.IntRange(1, 20_000).Draw(t, "prompt")
		for held := rapid.IntRange(0, prompt-1).Draw(t, "held"); held < prompt; {
			end := p.End(held, prompt)
			if end <= held || end > prompt || end < prompt && end%p.block != 0 {
				t.Fatalf("behind %d of %d tokens up to %d, blocks of %d", held, prompt, end, p.block)
			}
			x := curve.PrefillFeatures(end-held, held)
			if took := x.On(&p.curve) - p.curve.Fixed(); took > p.Seconds+1e-9 && end-held > p.block {
				t.Fatalf("from %d to %d it takes %v s of %v", held, end, took, p.Seconds)
			}
			held = end
		}
	})
}

// What takes a little more than a piece is two pieces of half of it, not one and a short one.
func TestDecodePieces_AreEqual(t *testing.T) {
	p := DecodePieces{Seconds: 0.064, curve: curve.Curve{0.01, 0.1, 0}, block: 16}
	first := p.End(0, 1000)
	if second := p.End(first, 1000); first != 496 || second != 1000 {
		t.Errorf("pieces of 1,000 tokens end at %d and %d, want 496 and 1000", first, second)
	}
}

// Not cut it has one piece.
func TestDecodePieces_EndOfAWholePrompt(t *testing.T) {
	if end := (DecodePieces{}).End(0, 50_000); end != 50_000 {
		t.Errorf("a prompt that is not cut has a piece up to %d", end)
	}
}

// What a prompt takes in pieces is counted with the steps between them, and only where a batch makes
// steps.
func TestModel_APromptInPiecesTakesTheStepsBetween(t *testing.T) {
	price := func(running int, gap time.Duration) (seconds float64) {
		m, f := Default(), Candidates{Decode: []Candidate{{ID: "d", Running: running, PieceBlock: 16}}}
		f.Decode[0].Prefill, f.Decode[0].Step = curve.Curve{0.01, 0.1, 0}, curve.Curve{0.02, 0, 0}
		w := new(pricing)
		w.put(&m, Demand{PromptTokens: 6000, OutputTokens: 100, Gap: gap}, &f)
		return w.ticket.Aggregated[0]
	}
	// 0.61 s, of which 0.6 in pieces of 64 ms: nine pauses.
	const pauses, handOff, step = 9, 0.002, 0.02
	for name, c := range map[string]struct{ got, want float64 }{
		"whole":                    {price(3, 0), 0.61},
		"in pieces, beside others": {price(3, 100*time.Millisecond), 0.61 + pauses*(handOff+step)},
		"in pieces, by itself":     {price(0, 100*time.Millisecond), 0.61 + pauses*handOff},
	} {
		if diff := c.got - c.want; diff > 1e-9 || diff < -1e-9 {
			t.Errorf("%s: %v s, want %v", name, c.got, c.want)
		}
	}
}

// A prompt that decode computes whole waits for the step that runs, and has the batch's part of each step that computes
// it; where nothing streams there is none.
func TestModel_BatchBeside(t *testing.T) {
	m, f := Default(), Candidates{Decode: []Candidate{{ID: "d", Running: 3}, {ID: "idle"}}}
	for i := range f.Decode {
		f.Decode[i].Step = curve.Curve{0.02, 0, 0}
	}
	m.PriceServers(&f, new(order.Servers))
	for _, c := range []struct {
		server, tokens int
		want           time.Duration
	}{{0, 1, 30 * time.Millisecond}, {0, m.ChunkTokens, 30 * time.Millisecond}, {0, m.ChunkTokens + 1, 50 * time.Millisecond}, {1, 1, 0}} {
		if got := m.BatchBeside(&f.Decode[c.server], c.tokens); got != c.want {
			t.Errorf("%d tokens beside %d streams: %v, want %v", c.tokens, f.Decode[c.server].Running, got, c.want)
		}
	}
}
