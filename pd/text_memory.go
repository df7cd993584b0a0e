package pd

// TextMemory is the memory that a client's text lies in. It is used for another's once all who hold it have released
// it: who has the request from the beginning, and each who reads it beside that.
type TextMemory interface {
	Hold()
	Release()
}

// holdText lets a leg in another goroutine read the client's text until it calls release.
func (st *requestState) holdText() (release func()) {
	if st.memory == nil {
		return func() {}
	}
	st.memory.Hold()
	return st.memory.Release
}

// releaseText gives the memory of the client's text back, once the request does not read it any more: legs that are under
// way hold it. It is for the goroutine that serves the request, and does nothing the second time.
func (st *requestState) releaseText() {
	if memory := st.memory; memory != nil {
		st.memory = nil
		memory.Release()
	}
}
