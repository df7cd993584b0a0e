package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// A file that cannot be written is refused before the work that it is to report: minutes, or hours.
func TestReports_AreOpenedBeforeTheWork(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "none", "report")
	for _, args := range [][]string{
		{"mutate", "--work", t.TempDir(), "--equivalent", "/dev/null", "--json", nowhere, "no/such/package"},
		{"sim", "--trace", "no-such-trace", "--picture", nowhere}, {"sim", "--trace", "no-such-trace", "--json", nowhere}, {"load", "--url", "http://127.0.0.1:1", "--json", nowhere},
	} {
		cmd := rootCommand()
		cmd.SetArgs(args)
		cmd.SetOut(new(strings.Builder))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "report: open "+nowhere) {
			t.Errorf("%s: %v", strings.Join(args[:1], " "), err)
		}
	}
}
