package ghost

import "testing"

// prompt has so many blocks of so many tokens: prompts of one name begin alike.
func prompt(name uint64, blocks, blockTokens int) *Prompt {
	return &Prompt{blocks, blockTokens, func(block int) uint64 { return name<<32 | uint64(block) }}
}

func room(tokens int) func() int { return func() int { return tokens } }

func TestMemory_SeesWholeStrides(t *testing.T) {
	var m Memory
	m.Enter(prompt(1, 100, 16), 0, room(1<<20)) // 1,600 tokens: three strides
	for _, c := range []struct{ blocks, want int }{{31, 496}, {32, 512}, {95, 1520}, {100, 1600}, {127, 2032}, {128, 1536}, {1000, 1536}} {
		if seen := m.Seen(prompt(1, c.blocks, 16)); seen != c.want {
			t.Errorf("of %d blocks that begin like an earlier prompt %d tokens came before, want %d", c.blocks, seen, c.want)
		}
	}
	if seen := m.Seen(prompt(2, 1000, 16)); seen != 0 {
		t.Errorf("%d tokens of another prompt came before", seen)
	}
	m.Enter(prompt(1, 1000, 16), 0, room(1<<20))
	if seen := m.Seen(prompt(1, 1000, 16)); seen != 16_000 {
		t.Errorf("of a prompt of 16,000 tokens that came before only %d did", seen)
	}
}

func TestMemory_LargeBlocksAreOneEntryEach(t *testing.T) {
	var m Memory
	m.Enter(prompt(1, 3, 1024), 0, room(1<<20))
	if seen := m.Seen(prompt(1, 4, 1024)); seen != 3072 {
		t.Errorf("%d tokens came before, want 3072", seen)
	}
}

// What came longest ago is forgotten: Reach times what caches hold at the earliest, twice that at the latest.
func TestMemory_IsBoundedByWhatCachesHold(t *testing.T) {
	const holds = 10 * Stride
	var m Memory
	for name := range uint64(1000) {
		m.Enter(prompt(name, 1, Stride), 0, room(holds))
		if n := len(m.young) + len(m.old); n > 2*Reach*10 {
			t.Fatalf("%d entries after %d prompts", n, name+1)
		}
	}
	if seen := m.Seen(prompt(1000-Reach*10, 1, Stride)); seen != Stride {
		t.Error("one is forgotten of the last prompts, of which caches hold a quarter")
	}
	if seen := m.Seen(prompt(1000-2*Reach*10-1, 1, Stride)); seen != 0 {
		t.Error("one is remembered that came before eight times what caches hold")
	}
}

// Where it is not known what caches hold nothing is remembered; where that is not known any more nothing is forgotten.
func TestMemory_AsksWhatCachesHold(t *testing.T) {
	var m Memory
	asked := 0
	for range 100 * askAgain {
		m.Enter(prompt(1, 100, Stride), 100, func() int { asked++; return 0 })
	}
	if asked < 100 || asked > 110 || m.Seen(prompt(1, 1, Stride)) != 0 || m.LostShare() != 0 {
		t.Errorf("asked %d times, %d tokens seen, %v lost", asked, m.Seen(prompt(1, 1, Stride)), m.LostShare())
	}
	for range askAgain + 1 {
		m.Enter(prompt(1, 1, Stride), 0, room(Stride))
	}
	for name := range uint64(Reach) { // more than there is room for in one table
		m.Enter(prompt(2+name, 1, Stride), 0, room(0))
	}
	if seen := m.Seen(prompt(1, 1, Stride)); seen != Stride {
		t.Error("what came before is forgotten since caches do not say what they hold")
	}
}

// The first prompts of a fleet come before its servers have said what they hold.
func TestMemory_LearnsSoonWhatCachesHold(t *testing.T) {
	for _, late := range []int{1, 3, 30} {
		var m Memory
		for range late {
			m.Enter(prompt(1, 2, Stride), 0, room(0))
		}
		for range late + leastPrompts {
			m.Enter(prompt(1, 2, Stride), 512, room(1<<20))
		}
		if lost := m.LostShare(); lost != 0.5 {
			t.Errorf("%.3f are lost of all but the first %d prompts, want half", lost, late)
		}
	}
}

func TestMemory_LostIsAShareOfTokensLately(t *testing.T) {
	var m Memory
	if m.LostShare() != 0 {
		t.Error("something is lost before anything came")
	}
	for range leastPrompts - 1 {
		m.Enter(prompt(1, 2, Stride), 1024, room(1<<20))
	}
	if lost := m.LostShare(); lost != 0 {
		t.Errorf("%.3f are lost of the first prompts", lost)
	}
	for range 10 * window {
		m.Enter(prompt(1, 6, Stride), 0, room(1<<20))
		m.Enter(prompt(1, 2, Stride), 1024, room(1<<20))
	}
	if lost := m.LostShare(); lost < 0.249 || lost > 0.251 {
		t.Errorf("%.3f are lost, want a quarter", lost)
	}
	for range 10 * window {
		m.Enter(prompt(1, 2, Stride), 0, room(1<<20))
	}
	if lost := m.LostShare(); lost > 0.001 {
		t.Errorf("%.3f are lost long after the last one was", lost)
	}
}

func TestMemories_OneForEachModel(t *testing.T) {
	var all Memories
	all.Of("a").Enter(prompt(1, 1, Stride), 0, room(1<<20))
	if all.Of("b").Seen(prompt(1, 1, Stride)) != 0 || all.Of("a").Seen(prompt(1, 1, Stride)) != Stride {
		t.Error("a model has the memory of another, or has lost its own")
	}
}

// BenchmarkMemory: a prompt of 12,000 tokens in blocks of 16, half of which came before, is looked up and entered. Budget:
// 5 us, no allocation but for the tables' growth.
func BenchmarkMemory(b *testing.B) {
	var m Memory
	n := uint64(0)
	p := &Prompt{750, 16, func(block int) uint64 {
		if block < 375 {
			return uint64(block)
		}
		return n<<20 | uint64(block)
	}}
	holds := room(3_000_000)
	b.ReportAllocs()
	for b.Loop() {
		n++
		m.Enter(p, p.Tokens()-m.Seen(p), holds)
	}
}
