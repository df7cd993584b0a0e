package process

import (
	"io"
	"strings"
	"sync"
)

// maxTail is how much is kept of what a process said last, in bytes.
const maxTail = 1 << 10

// tail passes on what a process says, and keeps the end of it.
type tail struct {
	log io.Writer

	mu   sync.Mutex // guards last
	last []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	t.last = append(t.last, p...)
	t.last = t.last[max(0, len(t.last)-maxTail):]
	t.mu.Unlock()
	return t.log.Write(p)
}

// String is the end of what was said, "" if nothing was.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.last))
}
