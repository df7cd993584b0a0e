package pd

import "github.com/tandem-gateway/tandem/pd/enginehttp"

// TextMemory is the memory that a client's text lies in. It is used for another's once all who hold it have released
// it: who has the request from the beginning, and each who reads it beside that.
type TextMemory interface {
	Hold()
	Release()
}

// memoryOf is the memory that a binding's legs lie in: the client's text, and prefill's answer where decode goes on
// behind that. nil: neither comes back.
func (st *requestState) memoryOf(b *binding) TextMemory {
	if b.prefillSaid == nil {
		return st.req.Memory
	}
	return legMemory{st.req.Memory, b.prefillSaid}
}

// legMemory is the memory of a leg that consists of a client's text and of an answer to prefill.
type legMemory struct {
	text   TextMemory // nil: it does not come back
	answer *enginehttp.AnswerMemory
}

// Hold lets a leg read both.
func (m legMemory) Hold() {
	m.answer.Hold()
	if m.text != nil {
		m.text.Hold()
	}
}

// Release is the end of that leg.
func (m legMemory) Release() {
	m.answer.Release()
	if m.text != nil {
		m.text.Release()
	}
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
