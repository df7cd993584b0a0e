package pd

// TextMemory is the memory that a client's text lies in. It is used for another's once all who hold it have released
// it: who has the request from the beginning, and each who reads it beside that.
type TextMemory interface {
	Hold()
	Release()
	// Lose is Release where somebody may read the memory who does not hold it.
	Lose()
}

// releaseText gives the memory of the client's text back, once the request does not read it any more: what was
// sent of it and is under way holds it. It is for the goroutine that serves the request, and does nothing the second
// time.
func (st *requestState) releaseText() {
	memory := st.memory
	if memory == nil {
		return
	}
	st.memory = nil
	if st.isTextShared() {
		memory.Lose()
		return
	}
	memory.Release()
}

// isTextShared reports whether another goroutine may read the client's text that does not hold its memory: a leg beside
// decode's, or one that has decode pull a piece. Who asks an engine for its tokens has a text of its own.
func (st *requestState) isTextShared() bool {
	for _, b := range st.bindings {
		if !b.isSent() || b.cut.pulled != nil {
			return true
		}
	}
	return false
}
