package pd

import (
	"testing"

	"github.com/tandem-gateway/tandem/pd/cost"
)

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

func TestGiveRoomBack_ServersOfADecisionThatIsNotPackedStayItsOwn(t *testing.T) {
	for _, packed := range []bool{true, false} {
		st := newRequestState()
		b, room := st.bind.newBinding(), st.room
		st.client, st.whole, st.packed = &Request{}, true, packed
		st.recordBinding(b)
		f := cost.Candidates{Decode: []cost.Candidate{{ID: "d"}}}
		kept := f.Clone(&b.candidates)
		st.giveRoomBack()
		other := cost.Candidates{Decode: []cost.Candidate{{ID: "other"}}}
		other.Clone(&room.binding.candidates)
		if own := kept.Decode[0].ID == "d"; own == packed {
			t.Errorf("packed %v: the servers of the choice are its own: %v", packed, own)
		}
	}
}
