package process

import (
	"io"
	"strings"
	"testing"
)

// Who waits for a process that ends instead is told what it said last: its log may be gone by then.
func TestAnswers_SaysWhatAProcessThatEndedSaid(t *testing.T) {
	var log strings.Builder
	p, err := Start("gateway", &log, nil, "/bin/sh", "-c", "head -c 5000 /dev/zero | tr '\\0' . >&2; echo 'unknown flag: --x' >&2; exit 1")
	if err != nil {
		t.Fatal(err)
	}
	err = p.Answers(t.Context(), "http://127.0.0.1:1/")
	if err == nil || !strings.HasPrefix(err.Error(), "gateway ended: ...") || !strings.HasSuffix(err.Error(), ".unknown flag: --x") || len(err.Error()) > 2*maxTail {
		t.Errorf("%v", err)
	}
	if log.Len() != 5000+len("unknown flag: --x\n") {
		t.Errorf("%d bytes came to its log", log.Len())
	}
}

func TestAnswers_OfAProcessThatSaidNothing(t *testing.T) {
	p, err := Start("engine", io.Discard, nil, "/bin/sh", "-c", "exit 1")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Answers(t.Context(), "http://127.0.0.1:1/"); err == nil || err.Error() != "engine ended" {
		t.Errorf("%v", err)
	}
}
