package mutate

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func sample(t *testing.T, out *bytes.Buffer) Config {
	t.Helper()
	dir, err := filepath.Abs("testdata/sample")
	if err != nil {
		t.Fatal(err)
	}
	return Config{Dir: dir, Work: t.TempDir(), Jobs: 2, Package: "sample", Out: out}
}

// Each operator's fault is noticed where a test looks, and only there.
func TestRun_EachOperator(t *testing.T) {
	var out bytes.Buffer
	cfg := sample(t, &out)
	cfg.Equivalent = map[string]string{"sample sample.go clamp: off by one: x > most": "both return 4"}
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, v := range r.Verdicts {
		got = append(got, strings.TrimRight(fmt.Sprint(v.word(), " ", v.describe()), " "))
	}
	slices.Sort(got)
	want := []string{
		"SURVIVED isSmall: off by one: x < 10",
		"UNTOUCHED Nobody: swap return: x != 3",
		"equal clamp: off by one: x > most",
		"killed both: swap return: return a, b",
		"killed clamp: negate condition: x > most",
		"killed counter.add: drop lock: c.mu",
		"killed isSmall: swap return: x < 10",
		"killed next: off by one: x + 1",
		"killed positive: negate condition: x <= 0",
		"killed positive: off by one: x <= 0",
		"killed positive: swap return: errors.New(\"not positive\")",
		"killed twice: drop call: f()",
		"killed twice: drop defer: defer f()",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// 10 killed of 13, of which the one that is listed would be more than 5 %.
	if score := r.Score(); score != 10.0/13 {
		t.Errorf("score %v", score)
	}
	var report bytes.Buffer
	if below := Report(&report, []Result{r}); below != 1 || !strings.Contains(report.String(), "MISSED") {
		t.Errorf("%d below the goal:\n%s", below, report.String())
	}

	// What is known is not run again.
	out.Reset()
	again, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if out.Len() > 0 || again.Killed() != r.Killed() || len(again.Verdicts) != len(r.Verdicts) {
		t.Errorf("a second run printed %q and found %d of %d", out.String(), again.Killed(), len(again.Verdicts))
	}
}

// The seed decides which faults are drawn.
func TestDraw(t *testing.T) {
	var all []place
	for i := range 100 {
		all = append(all, place{Mutant: Mutant{Line: i}})
	}
	lines := func(drawn []place) (l []int) {
		for _, p := range drawn {
			l = append(l, p.Line)
		}
		return l
	}
	a, b, c := lines(draw(all, 10, 1)), lines(draw(all, 10, 1)), lines(draw(all, 10, 2))
	if len(a) != 10 || !slices.Equal(a, b) || slices.Equal(a, c) || !slices.IsSorted(a) {
		t.Errorf("%v, %v, %v", a, b, c)
	}
	if len(draw(all, 0, 1)) != 100 || len(draw(all, 101, 1)) != 100 {
		t.Error("all are not all")
	}
}

func TestReadEquivalent(t *testing.T) {
	if _, err := ReadEquivalent("equivalent.txt"); err != nil {
		t.Error(err)
	}
	path := filepath.Join(t.TempDir(), "list")
	if err := os.WriteFile(path, []byte("# a comment\n\npd a.go F: drop call: f() # f does nothing\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := ReadEquivalent(path)
	if err != nil || got["pd a.go F: drop call: f()"] != "f does nothing" {
		t.Errorf("%v, %v", got, err)
	}
	if err := os.WriteFile(path, []byte("pd a.go F: drop call: f()\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadEquivalent(path); err == nil || !strings.Contains(err.Error(), ":1: add") {
		t.Errorf("without a reason: %v", err)
	}
}

// A file that is written between the search for places and the build is an error that names
// it, whether it became shorter or only different.
func TestChanged_RefusesAFileThatWasWrittenMeanwhile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.go")
	const source = "package a\n\nfunc f(x int) bool { return x < 10 }\n"
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module a\n\ngo 1.26\n")
	write("a.go", source)
	name, places, err := find(dir)
	if err != nil || len(places) == 0 {
		t.Fatalf("%d places, %v", len(places), err)
	}
	if _, err := changed(name, dir, places); err != nil {
		t.Errorf("nothing was written: %v", err)
	}
	for _, text := range []string{"package a\n", strings.Replace(source, "10", "11", 1)} {
		write("a.go", text)
		if _, err := changed(name, dir, places); err == nil || !strings.Contains(err.Error(), path+" was changed") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
