// Package testlog keeps what is logged while a test reads it. Tests of any package import it;
// it imports the standard library only.
package testlog

import (
	"bytes"
	"sync"
)

// Buffer keeps what many goroutines write. Its zero value is empty.
type Buffer struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

// Write appends to the buffer. It never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String returns what was written so far, or since it was last taken.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Take returns what String does and empties the buffer.
func (b *Buffer) Take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.text.Reset()
	return b.text.String()
}
