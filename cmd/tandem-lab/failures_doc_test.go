package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/chaos"
)

// Every row of docs/failures.md names tests or scenarios that exist.
func TestFailures_AreShown(t *testing.T) {
	const root = "../.."
	tests := make(map[string]bool)
	named := regexp.MustCompile(`(?m)^func Test(\w+)\(t \*testing\.T\)`)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != root {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		code, err := os.ReadFile(path)
		for _, m := range named.FindAllSubmatch(code, -1) {
			tests[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "failures.md"))
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if len(cells) != 3 || strings.HasPrefix(line, "| what goes wrong") || strings.HasPrefix(line, "| when") {
			continue
		}
		found := 0
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[2], -1) {
			switch name := m[1]; {
			case tests[name], slices.Contains(chaos.Names(), name):
				found++
			case !strings.HasPrefix(name, "make "):
				t.Errorf("there is no %s: %s", name, line)
			}
		}
		if found == 0 {
			t.Errorf("nothing shows this: %s", line)
		}
		shown += found
	}
	if shown < 50 {
		t.Errorf("only %d tests are named: the page is not read", shown)
	}
}
