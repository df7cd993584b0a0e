package pd

import "testing"

func TestGiveRoomBack_AfterAWholeAnswerThatNobodyElseWorkedFor(t *testing.T) {
	for name, c := range map[string]struct {
		but  func(*requestState)
		back bool
	}{
		"a whole answer":               {func(*requestState) {}, true},
		"a stream":                     {func(st *requestState) { st.whole = false }, false},
		"a leg failed before":          {func(st *requestState) { st.last = &LegError{} }, false},
		"it was bound twice":           {func(st *requestState) { st.recordBinding(st.bind.newBinding()) }, false},
		"its first claim was refused":  {func(st *requestState) { st.bindings[0] = st.bind.newBinding() }, false},
		"its prompt came in pieces":    {func(st *requestState) { st.bindings[0].cut.done = 1 }, false},
		"a leg ran beside the request": {func(st *requestState) { _, release := st.beside(); release() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			st := newRequestState()
			st.client, st.whole = &Request{}, true
			st.recordBinding(st.bind.newBinding())
			c.but(st)
			st.giveRoomBack()
			if back := st.client == nil; back != c.back {
				t.Errorf("given back: %v, want %v", back, c.back)
			}
		})
	}
}
