package main

import (
	"bytes"
	"strings"
	"sync"
	"testing"
)

func TestDemo_ShowsTwoServers(t *testing.T) {
	t.Parallel()
	var out lockedBuffer
	d := demo{listen: "127.0.0.1:0", admin: "127.0.0.1:0", once: true, out: &out, engine: testPrograms(t).Engine}
	if err := d.run(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	pair := make(map[string]string)
	for line := range strings.Lines(out.String()) {
		if words := strings.Fields(line); len(words) == 2 && strings.HasPrefix(words[1], "127.") {
			pair[words[0]] = words[1]
		}
	}
	if pair["prefill"] == "" || pair["decode"] == "" || pair["prefill"] == pair["decode"] || !strings.Contains(out.String(), "curl -N") {
		t.Errorf("%s", out.String())
	}
}

// lockedBuffer takes what the demo and the ends of its engines print.
type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
