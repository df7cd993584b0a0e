package bpe

import "sync"

const (
	worthKeeping = 512      // bytes of a text that is kept with its tokens
	mostKept     = 24 << 20 // bytes of the texts of a generation
)

// memory keeps long texts with their tokens: the next request of a conversation has all of
// them again. It has two generations; when the younger one is full, the older one goes.
type memory struct {
	mu         sync.Mutex
	young, old map[string][]int32
	size       int // bytes of the texts in young
}

// Append appends the tokens of a text, as Encode makes them.
func (t *Tokenizer) Append(ids []int32, text string) []int32 {
	if len(text) < worthKeeping {
		return append(ids, t.Encode(text)...)
	}
	encoded, known := t.memory.find(text)
	if !known {
		encoded = t.Encode(text)
		t.memory.keep(text, encoded)
	}
	return append(ids, encoded...)
}

func (m *memory) find(text string) ([]int32, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ids, known := m.young[text]; known {
		return ids, true
	}
	ids, known := m.old[text]
	if known {
		m.keepLocked(text, ids)
	}
	return ids, known
}

func (m *memory) keep(text string, ids []int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keepLocked(text, ids)
}

func (m *memory) keepLocked(text string, ids []int32) {
	if m.young == nil || m.size > mostKept {
		m.young, m.old, m.size = make(map[string][]int32), m.young, 0
	}
	if _, known := m.young[text]; !known {
		m.young[text] = ids
		m.size += len(text)
	}
}
