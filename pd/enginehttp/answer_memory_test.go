package enginehttp

import (
	"bytes"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

// readInto reads an answer of such a length.
func readInto(t *testing.T, m *AnswerMemory, length int) []byte {
	t.Helper()
	body := io.NopCloser(strings.NewReader(strings.Repeat("a", length)))
	answer, err := ReadAnswer(&http.Response{ContentLength: int64(length), Body: body}, &HeldAnswer{Memory: m})
	if err != nil || len(answer) != length || bytes.Count(answer, []byte("a")) != length {
		t.Fatalf("%d bytes, %v, want %d", len(answer), err, length)
	}
	return answer
}

// withoutCollector keeps memory that nobody holds, and begins without any.
func withoutCollector(t *testing.T) {
	percent := debug.SetGCPercent(-1)
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	runtime.GC()
}

// Memory is for others when the last of its holders has released it and not before.
func TestAnswerMemory_ComesBackFromTheLastHolder(t *testing.T) {
	for name, x := range map[string]struct {
		end  func(m *AnswerMemory)
		back bool
	}{
		"released":            {func(m *AnswerMemory) { m.Release() }, true},
		"held":                {func(*AnswerMemory) {}, false},
		"held by another":     {func(m *AnswerMemory) { m.Hold(); m.Release() }, false},
		"released by another": {func(m *AnswerMemory) { m.Hold(); m.Release(); m.Release() }, true},
	} {
		withoutCollector(t)
		var m AnswerMemory
		first := readInto(t, &m, 100_000)
		x.end(&m)
		if spoilsReleased && (first[0] == 0xDD) != x.back {
			t.Errorf("%s: overwritten: %v", name, !x.back)
		}
		if again := readInto(t, new(AnswerMemory), 101_000); (&again[0] == &first[0]) != x.back {
			t.Errorf("%s: it came back: %v", name, !x.back)
		}
	}
}

// An answer lies in memory that it has room in, and a short one, or one that is longer than usual, in its own.
func TestAnswerMemory_HasRoom(t *testing.T) {
	withoutCollector(t)
	var short, long, m AnswerMemory
	shorter, longer := readInto(t, &short, leastReused), readInto(t, &long, 5*leastReused)
	short.Release()
	long.Release()
	if got := readInto(t, &m, 4*leastReused); &got[0] != &longer[0] {
		t.Error("it is not in the memory that has room")
	}
	if got := readInto(t, new(AnswerMemory), leastReused); &got[0] != &shorter[0] {
		t.Error("what has no room for one is not for another")
	}
	for _, length := range []int{leastReused / 2, usualAnswer + 1} {
		var m AnswerMemory
		if readInto(t, &m, length); m.bytes != nil && !spoilsReleased {
			t.Errorf("one of %d bytes is in memory that comes back", length)
		}
		m.Hold()
		m.Release()
		m.Release()
	}
	var none *AnswerMemory
	readInto(t, none, 4*leastReused)
	none.Hold()
	none.Release()
}

// Of a burst little is kept, and that until the collector comes.
func TestAnswerMemory_IsBounded(t *testing.T) {
	withoutCollector(t)
	held := make([]AnswerMemory, mostUnheld+5)
	for i := range held {
		readInto(t, &held[i], leastReused)
	}
	for i := range held {
		held[i].Release()
		held[i].bytes = nil
	}
	if n := len(unheldAnswers.pieces); n != mostUnheld {
		t.Errorf("%d pieces are kept, want %d", n, mostUnheld)
	}
	runtime.GC()
	if piece := unheldAnswers.find(leastReused); piece != nil || len(unheldAnswers.pieces) != 0 {
		t.Errorf("%d pieces are kept behind a collection", 1+len(unheldAnswers.pieces))
	}
}
