package enginehttp

import (
	"errors"
	"sync/atomic"
)

// ErrAnswersHeld is of an answer that was not read to its end.
var ErrAnswersHeld = errors.New("long answers of other requests take the memory that there is for them")

// AnswerBudget bounds the memory of long answers that are held whole at once: from their reading until clients have
// them.
type AnswerBudget struct {
	most int64 // bytes
	now  atomic.Int64
}

// NewAnswerBudget returns a budget of so many bytes.
func NewAnswerBudget(most int64) *AnswerBudget { return &AnswerBudget{most: most} }

// Hold returns what one answer will be counted as. Without a budget it is not counted.
func (b *AnswerBudget) Hold() HeldAnswer { return HeldAnswer{budget: b} }

// HeldAnswer is what one answer is counted as. Its zero value is not counted.
type HeldAnswer struct {
	budget *AnswerBudget
	bytes  int64
}

// grow counts an answer as at least so long, unless all of them would be too long.
func (h *HeldAnswer) grow(bytes int) bool {
	more := int64(bytes) - h.bytes
	if h.budget == nil || bytes <= usualAnswer || more <= 0 {
		return true
	}
	if h.budget.now.Add(more) > h.budget.most {
		h.budget.now.Add(-more)
		return false
	}
	h.bytes += more
	return true
}

// IsCounted reports whether there is something to release.
func (h *HeldAnswer) IsCounted() bool { return h.bytes > 0 }

// Release gives back what is counted. Twice is as good as once.
func (h *HeldAnswer) Release() {
	if h.bytes > 0 {
		h.budget.now.Add(-h.bytes)
		h.bytes = 0
	}
}
