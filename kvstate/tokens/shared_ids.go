package tokens

import "slices"

// sharedIDs are prompts whose tokens begin in one piece of memory, that of the prompt among them that was learned last: of
// questions on one document, and of the branches of a conversation, each is known to its end, and what they have in
// common is there once.
type sharedIDs struct {
	all []uint32
	by  []*known // which begin with some of them
}

const (
	// leastShared is how many tokens are worth sharing.
	leastShared = 1024
	// notShared is what of the memory of prompts may be other than in a new one for them to begin there, as the divisor of
	// a share: each has a copy of it.
	notShared = 32
)

// count is how many tokens the prompt has.
func (k *known) count() int { return len(k.ids) + len(k.rest) }

// leadingIn is how many leading tokens the prompt shares with another one.
func (k *known) leadingIn(ids []uint32) int {
	n := shared(ids, k.ids)
	if n == len(k.ids) {
		n += shared(ids[n:], k.rest)
	}
	return n
}

// shareLocked lets an old prompt begin in the memory of a new one, and with it all that begin in the same memory as the old
// one: as long as one did not, that would stay. It does so where nearly all of that memory is the same and the new prompt
// is not much longer, since what is held is the new one's to its end.
func (m *memory) shareLocked(k, old *known) {
	all, by := old.ids, []*known{old}
	if old.shared != nil {
		all, by = old.shared.all, old.shared.by
	}
	n := shared(k.ids, all)
	if n < leastShared || n < len(all)-len(all)/notShared || n < len(k.ids)/2 {
		return
	}
	if old.shared != nil {
		m.bytes -= old.shared.bytes()
	}
	s := &sharedIDs{k.ids, append(slices.Clip(by), k)}
	m.bytes += s.bytes()
	for _, x := range by {
		m.bytes -= x.bytes()
		if n < len(x.ids) {
			x.ids, x.rest = x.ids[:n], slices.Concat(x.ids[n:], x.rest)
		}
		x.ids, x.shared = k.ids[:len(x.ids):len(x.ids)], s
		m.bytes += x.bytes()
	}
	k.shared = s
}

// bytes of memory.
func (s *sharedIDs) bytes() int64 { return idBytes * int64(len(s.all)) }

// firstLocked are the first n tokens of a prompt in one piece. One that is asked for more of them than it shares has all in
// memory of its own from then on.
func (m *memory) firstLocked(k *known, n int) []uint32 {
	if n > len(k.ids) {
		m.bytes -= k.bytes()
		m.leaveLocked(k)
		k.ids, k.rest = slices.Concat(k.ids, k.rest), nil
		m.bytes += k.bytes()
	}
	return k.ids[:n:n]
}

// leaveLocked takes a prompt from those that it shares memory with.
func (m *memory) leaveLocked(k *known) {
	s := k.shared
	if s == nil {
		return
	}
	k.shared = nil
	s.by = slices.DeleteFunc(s.by, func(other *known) bool { return other == k })
	if len(s.by) == 0 {
		m.bytes -= s.bytes()
	}
}
