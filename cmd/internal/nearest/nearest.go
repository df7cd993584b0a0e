// Package nearest asks for the name that was most likely meant where a setting, a flag or a
// model is not known. cmd's packages import it.
package nearest

import (
	"fmt"
	"strings"
)

// of is the one of some names that was most likely meant, "" if none is near.
func of(name string, names []string) (best string) {
	least := max(2, len(name)/3) + 1
	for _, n := range names {
		if d := edits(name, n); d < least {
			best, least = n, d
		}
	}
	return best
}

// Hint asks for the name that was most likely meant, as the end of a message: "" if none is
// near.
func Hint(name string, names []string) string {
	if n := of(name, names); n != "" {
		return fmt.Sprintf("; did you mean %s?", n)
	}
	return ""
}

// edits is how many letters must be added, left out or changed to make b of a
// (Levenshtein's distance). Case and the kind of dash do not count.
func edits(a, b string) int {
	a, b = strings.ReplaceAll(strings.ToLower(a), "_", "-"), strings.ReplaceAll(strings.ToLower(b), "_", "-")
	row := make([]int, len(b)+1) // from what was read of a to each beginning of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			changed := diagonal
			if a[i] != b[j] {
				changed++
			}
			diagonal = row[j+1]
			row[j+1] = min(changed, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
