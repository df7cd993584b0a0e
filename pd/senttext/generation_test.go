package senttext

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
)

// markByMark is a serverText that keeps each mark by itself and forgets none: what one must agree with for
// as long as it has room.
type markByMark map[Mark]sighting

func (m markByMark) record(marks []Mark, seen sighting, now time.Duration) {
	for _, mark := range marks {
		m[mark] = m[mark].followedBy(seen, now)
	}
}

func (m markByMark) withdraw(marks []Mark, computes time.Duration) {
	for _, mark := range marks {
		switch at := m[mark]; {
		case at == (sighting{}) || at.computes != computes:
		case at.sentBefore:
			m[mark] = sighting{from: at.fromBefore, until: at.until}
		default:
			delete(m, mark)
		}
	}
}

// Prompts that branch anywhere, that are recorded as far as anywhere and taken back, are known as if each
// mark were kept by itself, also where a generation has passed since they were recorded.
func TestServerText_KnowsBranchesAsIfEachMarkWereKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(100) {
			rng := rand.New(rand.NewPCG(seed, 2))
			prompts := branches(rng, 1+rng.IntN(8))
			text, each := &serverText{}, markByMark{}
			var open []sighting
			begin := time.Now()
			for step := range 80 {
				time.Sleep(time.Duration(rng.IntN(20)) * time.Second)
				now := time.Since(begin)
				chunks := prompts[rng.IntN(len(prompts))]
				marks := marksOf(Salted{}, chunks[:1+rng.IntN(len(chunks))])
				mark := func(i int) Mark { return marks[i] }
				seen := sighting{from: now, until: now + life}
				switch rng.IntN(4) {
				case 0:
					seen.computes = now + time.Duration(1+rng.IntN(60))*time.Second + time.Duration(step)
					open = append(open, seen)
				case 1:
					if len(open) > 0 {
						computes := open[rng.IntN(len(open))].computes
						text.withdraw(len(marks), mark, computes)
						each.withdraw(marks, computes)
					}
					continue
				case 2: // as when there was no room
					if len(text.earlier.runs) == 0 {
						text.earlier, text.recent = text.recent, generation{}
					}
				}
				text.record(len(marks), mark, seen, usualTokens, now)
				each.record(marks, seen, now)
				for n, chunks := range prompts {
					of := text.findChunks(saltOf(Salted{}), chunks)
					for i, mark := range marksOf(Salted{}, chunks) {
						if got, want := of.at(i).unlessOver(now), each[mark].unlessOver(now); got != want {
							t.Fatalf("seed %d, step %d, prompt %d, mark %d: %v, want %v", seed, step, n, i, got, want)
						}
					}
				}
			}
		}
	})
}

// Marks that repeat, as no text's do and another replica might send them, do no harm.
func TestServerText_MarksThatRepeat(t *testing.T) {
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 3))
		text := &serverText{}
		for step := range 40 {
			marks := make([]Mark, 1+rng.IntN(12))
			for i := range marks {
				marks[i] = Mark(rng.IntN(3))
			}
			mark, now := func(i int) Mark { return marks[i] }, time.Duration(step)*time.Second
			switch rng.IntN(4) {
			case 0:
				text.withdraw(len(marks), mark, now)
			case 1:
				text.earlier, text.recent = text.recent, generation{}
			}
			text.record(len(marks), mark, sighting{from: now, until: now + life, computes: now + time.Duration(rng.IntN(3))*time.Second}, usualTokens, now)
		}
	}
}

// unlessOver is what is believed, nothing where that is over.
func (s sighting) unlessOver(now time.Duration) sighting {
	if now > s.until {
		return sighting{}
	}
	return s
}

// branches are the chunks of prompts, each of which begins like another.
func branches(rng *rand.Rand, n int) (prompts [][]tokens.Chunk) {
	for len(prompts) < n {
		var chunks []tokens.Chunk
		if len(prompts) > 0 {
			like := prompts[rng.IntN(len(prompts))]
			chunks = append(chunks, like[:rng.IntN(len(like)+1)]...)
		}
		for range 1 + rng.IntN(150) {
			chunks = append(chunks, tokens.Chunk(rng.Uint64()))
		}
		prompts = append(prompts, chunks)
	}
	return prompts
}
