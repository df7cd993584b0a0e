package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What was measured before stays where a server cannot be measured: tandem serve --capacity reads it.
func TestCalibrate_AServerThatIsDownTakesNoCapacityAway(t *testing.T) {
	before := filepath.Join(t.TempDir(), "capacity.json")
	if err := os.WriteFile(before, []byte("measured"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := calibrateCommand()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs([]string{"--server", "http://127.0.0.1:1", "--out", before})
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("%v", err)
	}
	if text, err := os.ReadFile(before); string(text) != "measured" {
		t.Errorf("%q is left of it: %v", text, err)
	}
}
