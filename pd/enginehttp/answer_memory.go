package enginehttp

import (
	"slices"
	"sync"
	"sync/atomic"
	"weak"
)

// AnswerMemory is memory that a long answer is read into, for those who hold it: who has the answer, and who calls Hold.
// Another answer is read into it once all of them have released it: new memory for each takes as long to clear and to
// collect as all else that is done with an answer to prefill. What one of them never releases is left to the collector.
// Its zero value is of no answer; nil is of one that lies in memory which does not come back.
type AnswerMemory struct {
	bytes   *[]byte // nil: that of the answer does not come back
	holders atomic.Int32
}

// take returns room for so many bytes, which its caller holds.
func (m *AnswerMemory) take(size int) []byte {
	if m == nil || size < leastReused && !spoilsReleased || size > usualAnswer {
		return make([]byte, 0, size)
	}
	m.bytes = unheldAnswers.take(size)
	m.holders.Store(1)
	return (*m.bytes)[:0]
}

// Hold lets another read the answer, until it releases it.
func (m *AnswerMemory) Hold() {
	if m != nil {
		m.holders.Add(1)
	}
}

// Release is the end of one who held it. Any goroutine may call it.
func (m *AnswerMemory) Release() {
	if m == nil || m.holders.Add(-1) != 0 || m.bytes == nil {
		return
	}
	if spoilsReleased {
		for i := range *m.bytes {
			(*m.bytes)[i] = 0xDD
		}
	}
	unheldAnswers.put(m.bytes)
}

// leastReused is from what size on memory is used again, in bytes: less is cleared and collected in no time.
const leastReused = 32 << 10

// mostUnheld is how much memory for answers waits for another one at most, in pieces: some answers are read at once, and
// what is left of a burst is of no use.
const mostUnheld = 32

// unheldAnswers is the memory for answers that nobody holds. The collector takes it as it takes garbage: it is what was used
// since it came last.
var unheldAnswers answerMemories

type answerMemories struct {
	mu     sync.Mutex // guards pieces
	pieces []weak.Pointer[[]byte]
}

// take takes the piece that was put last and has room for so many bytes, or makes one.
func (a *answerMemories) take(size int) *[]byte {
	if piece := a.find(size); piece != nil {
		return piece
	}
	const step = 64 << 10 // so that a prompt that is a little longer finds room
	piece := make([]byte, (size+step-1)/step*step)
	return &piece
}

func (a *answerMemories) find(size int) *[]byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := len(a.pieces) - 1; i >= 0; i-- {
		piece := a.pieces[i].Value()
		if piece != nil && len(*piece) < size {
			continue
		}
		a.pieces = slices.Delete(a.pieces, i, i+1)
		if piece != nil {
			return piece
		}
	}
	return nil
}

func (a *answerMemories) put(piece *[]byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.pieces) < mostUnheld {
		a.pieces = append(a.pieces, weak.Make(piece))
	}
}
