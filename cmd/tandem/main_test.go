package main

import (
	"strings"
	"testing"
)

func TestProgram_AMistypedFlagIsGuessed(t *testing.T) {
	root := rootCommand()
	root.SetArgs([]string{"check", "--retry-ration", "3"})
	if err := root.Execute(); err == nil || !strings.Contains(err.Error(), "did you mean --retry-ratio?") {
		t.Error(err)
	}
}
