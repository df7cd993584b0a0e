package enginehttp

import (
	"errors"
	"io"
	"net/http"
	"testing"
)

// Long answers are counted while they are held, and refused where all together would be too long. Usual ones never are.
func TestReadAnswer_IsCountedWhileItIsHeld(t *testing.T) {
	budget := NewAnswerBudget(8<<20, func() bool { return false })
	read := func(length int64, held *HeldAnswer) error {
		_, err := ReadAnswer(&http.Response{ContentLength: length, Body: io.NopCloser(io.LimitReader(zeros{}, length))}, held)
		return err
	}
	first, second, usual, again := budget.Hold("eve"), budget.Hold("eve"), budget.Hold("eve"), budget.Hold("eve")
	if err := read(3<<20, &first); err != nil || budget.bytes.Taken() < 3<<20 {
		t.Errorf("the first: %v, %d bytes", err, budget.bytes.Taken())
	}
	if err := read(5<<20, &second); !errors.Is(err, ErrAnswersHeld) {
		t.Errorf("the second: %v", err)
	}
	second.Release()
	if err := read(usualAnswer-1, &usual); err != nil || usual.IsCounted() {
		t.Errorf("a usual one: %v", err)
	}
	if first.Shrink(3 << 19); budget.bytes.Taken() != 3<<19 {
		t.Errorf("%d bytes are counted of 1.5 MiB", budget.bytes.Taken())
	}
	if first.Shrink(3 << 20); budget.bytes.Taken() != 3<<19 {
		t.Errorf("%d bytes are counted of 1.5 MiB that may be longer", budget.bytes.Taken())
	}
	if first.Shrink(usualAnswer); first.IsCounted() {
		t.Error("what is left is a usual one, and is counted")
	}
	first.Release()
	if now := budget.bytes.Taken(); now != 0 {
		t.Errorf("%d bytes are counted of none", now)
	}
	if err := read(3<<20, &again); err != nil {
		t.Errorf("one behind them: %v", err)
	}
}
