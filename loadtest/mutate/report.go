package mutate

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
)

// Goal is the score below which a package fails.
const Goal = 0.85

// ReadEquivalent reads a list of faults that no test can detect: a line each, "PACKAGE NAME #
// reason", as they are printed; lines that begin with # are comments.
func ReadEquivalent(path string) (map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	reasons := map[string]string{}
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, reason, ok := strings.Cut(line, " # ")
		if !ok || strings.TrimSpace(reason) == "" {
			return nil, fmt.Errorf("%s:%d: add \" # \" and the reason", path, n)
		}
		reasons[strings.TrimSpace(name)] = strings.TrimSpace(reason)
	}
	return reasons, lines.Err()
}

// Report prints the survivors and the table of the packages, and returns how many are below
// the goal.
func Report(w io.Writer, results []Result) (below int) {
	for _, r := range results {
		survivors := r.Survivors()
		if len(survivors) > 0 {
			_, _ = fmt.Fprintf(w, "\n%s: no test notices\n", r.Package)
		}
		for _, v := range survivors {
			untouched := ""
			if !v.Reached {
				untouched = " (no test comes by)"
			}
			_, _ = fmt.Fprintf(w, "  %s%s\n", v.Name, untouched)
		}
	}
	if len(results) == 0 {
		return 0
	}
	_, _ = fmt.Fprintf(w, "\n%-24s %7s %6s %7s %9s %6s  %s\n", "package", "places", "drawn", "killed", "equivalent", "score", "")
	for _, r := range results {
		mark := "ok"
		if r.Score() < Goal {
			mark = fmt.Sprintf("MISSED (goal %.0f %%)", 100*Goal)
			below++
		}
		_, _ = fmt.Fprintf(w, "%-24s %7d %6d %7d %9d %5.1f %%  %s\n",
			r.Package, r.Places, len(r.Verdicts), r.Killed(), r.Equivalent(), 100*r.Score(), mark)
	}
	return below
}
