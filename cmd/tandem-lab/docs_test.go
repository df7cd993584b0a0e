package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDocs_AreCurrent(t *testing.T) {
	var out strings.Builder
	if err := docs("../../docs", true, &out); err != nil {
		t.Error(err)
	}
}

// A bar in a cell begins another cell: what a flag's help says behind it was on no page.
func TestDocs_RowsHaveTheCellsOfTheirHead(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) < 20 {
		t.Fatal(len(pages), err)
	}
	for _, page := range append(pages, "../../README.md") {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		head, inFence := 0, false
		for line := range strings.Lines(string(content)) {
			inFence = inFence != strings.HasPrefix(strings.TrimSpace(line), "```")
			if inFence || !strings.HasPrefix(line, "|") {
				head = 0
				continue
			}
			cells := strings.Count(line, "|") - strings.Count(line, `\|`)
			if head == 0 {
				head = cells
			}
			if cells != head {
				t.Errorf("%s: %d cells below a head of %d: %s", page, cells-1, head-1, line)
			}
		}
	}
}

// The picture of a choice follows from a table: who makes a pair, who is alone, and what was chosen. A table that is
// none is refused.
func TestPairPicture_IsOfATable(t *testing.T) {
	choices, err := readPairChoices(`
pair        total  token  prefill  transfer  step    cost    others    holds   holds      MB
->P1 D1     133.9   59.8     39.5      11.7   8.6    35.1      39.0     6640    6640   134.2
  alone D1  235.9   47.0     38.4       0.0   8.6    35.1     153.7        0    6640     0.0
` + "```")
	if err != nil || len(choices) != 2 {
		t.Fatalf("%v: %+v", err, choices)
	}
	if first := choices[0]; !first.chosen || first.name != "P1 to D1" || first.total != 133.9 || first.first != 59.8 {
		t.Errorf("the pair: %+v", first)
	}
	if second := choices[1]; second.chosen || second.name != "D1 alone" || second.total != 235.9 {
		t.Errorf("decode alone: %+v", second)
	}
	for _, none := range []string{"", "\npair total\n->P1 D1 1 2\n```", "\npair total\nP1 D1 1 2 3 4 5 6 7 8 9 x\n```"} {
		if _, err := pairPicture(none); err == nil {
			t.Errorf("%q is drawn", none)
		}
	}
}

// On the page that shows a choice the first alternative is the chosen one and the cheapest, and the terms of each add
// up.
func TestPairPicture_ThePagesTableAddsUp(t *testing.T) {
	page, err := os.ReadFile("../../docs/pair.md")
	if err != nil {
		t.Fatal(err)
	}
	choices, err := readPairChoices(string(page))
	if err != nil || len(choices) < 2 || !choices[0].chosen {
		t.Fatalf("%v: %+v", err, choices)
	}
	for _, c := range choices {
		sum, first := 0.0, 0.0
		for k, ms := range c.terms {
			if sum += ms; k < pairTermsOfFirst {
				first += ms
			}
		}
		if math.Abs(sum-c.total) > 0.3 || math.Abs(first-c.first) > 0.3 || c.total < choices[0].total {
			t.Errorf("%+v: the terms are %.1f together, %.1f to the first token", c, sum, first)
		}
	}
}
