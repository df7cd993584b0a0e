package serving

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// help is what serve prints, asked with a flag.
func help(t *testing.T, flag string) string {
	t.Helper()
	cmd, out := Command(), &bytes.Buffer{}
	cmd.SetOut(out)
	cmd.SetArgs([]string{flag})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// The help fits on a screen of 50 lines and 100 columns, names every group, and where the rest is.
func TestHelp_FitsOnAScreen(t *testing.T) {
	text := help(t, "--help")
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) > 50 {
		t.Errorf("%d lines", len(lines))
	}
	for _, line := range lines {
		if len(line) > 100 {
			t.Errorf("%d characters: %s", len(line), line)
		}
	}
	for _, group := range Settings() {
		if !strings.Contains(text, group.Title+" (") {
			t.Errorf("%s is not named", group.Title)
		}
		for _, name := range group.First {
			if !strings.Contains(text, "\n  --"+name+" ") {
				t.Errorf("%s is not shown", name)
			}
		}
	}
	if !strings.Contains(text, "--help-all") {
		t.Error("it does not say where the rest is")
	}
}

// With --help-all every setting is shown once.
func TestHelp_AllShowsEverySetting(t *testing.T) {
	text := help(t, "--help-all")
	for _, group := range Settings() {
		group.Flags.VisitAll(func(f *pflag.Flag) {
			if n := strings.Count(text, "\n      --"+f.Name+" "); n != 1 {
				t.Errorf("--%s is shown %d times", f.Name, n)
			}
		})
	}
}
