package main

import (
	"os"
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

// docs/operating.md names every command, as its help does.
func TestProgram_CommandsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range rootCommand().Commands() {
		if row := "\n| `tandem " + cmd.Name() + "` | " + cmd.Short + " |\n"; !strings.Contains(string(page), row) {
			t.Errorf("docs/operating.md has no row%s", row)
		}
	}
}

// --version prints what the command version prints.
func TestProgram_Version(t *testing.T) {
	said := func(arg string) string {
		var out strings.Builder
		root := rootCommand()
		root.SetOut(&out)
		root.SetArgs([]string{arg})
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if flag, command := said("--version"), said("version"); flag != command || !strings.HasPrefix(flag, "tandem ") {
		t.Errorf("%q and %q", flag, command)
	}
}
