package main

import (
	"math"
	"os"
	"strings"
	"testing"
)

func TestDocs_AreCurrent(t *testing.T) {
	var out strings.Builder
	if err := docs("../../docs", true, &out); err != nil {
		t.Error(err)
	}
}

// The picture of a choice follows from the table on its page, whose terms add up; a table that is
// none is refused.
func TestPairPicture_IsOfTheTable(t *testing.T) {
	page, err := os.ReadFile("../../docs/pair.md")
	if err != nil {
		t.Fatal(err)
	}
	choices, err := readPairChoices(string(page))
	if err != nil || len(choices) != 6 || !choices[0].chosen || choices[0].name != "P1 to D1" || choices[2].name != "D1 alone" {
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
	for _, none := range []string{"", "\npair total\n->P1 D1 1 2\n```", "\npair total\nP1 D1 1 2 3 4 5 6 7 8 9 x\n```"} {
		if _, err := pairPicture(none); err == nil {
			t.Errorf("%q is drawn", none)
		}
	}
}
