package enginehttp

import (
	"errors"

	"github.com/tandem-gateway/tandem/pd/bytebudget"
)

// ErrAnswersHeld is of an answer that was not read to its end.
var ErrAnswersHeld = errors.New("long answers of other requests take the memory that there is for them")

// AnswerBudget bounds the memory of long answers, and of long events of streams, that are held whole at once: from their
// reading until clients have them.
type AnswerBudget struct {
	bytes          *bytebudget.Budget
	severalTenants func() bool
}

// NewAnswerBudget returns a budget of so many bytes, which tenants share while there are several.
func NewAnswerBudget(most int64, severalTenants func() bool) *AnswerBudget {
	return &AnswerBudget{bytebudget.New(most), severalTenants}
}

// Hold returns what one answer to a tenant, "" where it is nobody's, will be counted as. Without a budget it is not counted.
func (b *AnswerBudget) Hold(tenant string) HeldAnswer {
	if b == nil {
		return HeldAnswer{}
	}
	if !b.severalTenants() {
		tenant = "" // there is nobody to share it with
	}
	return HeldAnswer{budget: b.bytes, tenant: tenant}
}

// HeldAnswer is what one answer is counted as. Its zero value is not counted.
type HeldAnswer struct {
	Memory *AnswerMemory // that it is read into; nil: it has memory of its own

	budget *bytebudget.Budget
	tenant string
	bytes  int64
}

// Grow counts an answer as at least so long, unless all of them, or those of its tenant, would be too long.
func (h *HeldAnswer) Grow(bytes int) bool {
	more := int64(bytes) - h.bytes
	if h.budget == nil || bytes <= usualAnswer || more <= 0 {
		return true
	}
	if !h.budget.Take(h.tenant, h.bytes, more) {
		return false
	}
	h.bytes += more
	return true
}

// Shrink counts an answer as no longer than that from now on.
func (h *HeldAnswer) Shrink(bytes int) {
	if bytes <= usualAnswer {
		h.Release()
	} else if less := h.bytes - int64(bytes); less > 0 {
		h.budget.GiveBack(h.tenant, less)
		h.bytes -= less
	}
}

// IsCounted reports whether there is something to release.
func (h *HeldAnswer) IsCounted() bool { return h.bytes > 0 }

// Release gives back what is counted. Twice is as good as once.
func (h *HeldAnswer) Release() {
	if h.bytes > 0 {
		h.budget.GiveBack(h.tenant, h.bytes)
		h.bytes = 0
	}
}
