package tokens

import "slices"

// insertLocked makes a prompt known, and drops those that were used least recently
// until there is room.
func (m *memory) insertLocked(k *known) {
	for _, c := range k.cuts {
		same := m.index[c.hash]
		if len(same) >= sameCut {
			same = same[:sameCut-1] // the oldest here; other cuts still find it
		}
		m.index[c.hash] = slices.Insert(same, 0, k)
	}
	m.pushLocked(k)
	m.count++
	m.bytes += k.bytes()
	m.evictLocked()
}

// evictLocked drops those that were used least recently until there is room.
func (m *memory) evictLocked() {
	for m.bytes > m.limit && m.oldest != nil {
		m.dropLocked(m.oldest)
	}
}

// dropLocked forgets a prompt. It may be unknown already.
func (m *memory) dropLocked(k *known) {
	if k.newer == nil && m.newest != k {
		return
	}
	for _, c := range k.cuts {
		same := slices.DeleteFunc(m.index[c.hash], func(other *known) bool { return other == k })
		if len(same) == 0 {
			delete(m.index, c.hash)
		} else {
			m.index[c.hash] = same
		}
	}
	m.unlinkLocked(k)
	m.count--
	m.bytes -= k.bytes()
	m.leaveLocked(k)
}

// touchLocked marks a prompt as used.
func (m *memory) touchLocked(k *known) {
	m.unlinkLocked(k)
	m.pushLocked(k)
}

func (m *memory) pushLocked(k *known) {
	k.older, k.newer = m.newest, nil
	if m.newest != nil {
		m.newest.newer = k
	} else {
		m.oldest = k
	}
	m.newest = k
}

func (m *memory) unlinkLocked(k *known) {
	if k.older != nil {
		k.older.newer = k.newer
	} else {
		m.oldest = k.newer
	}
	if k.newer != nil {
		k.newer.older = k.older
	} else {
		m.newest = k.older
	}
	k.older, k.newer = nil, nil
}

// forget drops all prompts of a context.
func (m *memory) forget(root uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgetLocked(root)
}

func (m *memory) forgetLocked(root uint64) {
	for old := m.oldest; old != nil; {
		next := old.newer
		if old.root == root {
			m.dropLocked(old)
		}
		old = next
	}
}
