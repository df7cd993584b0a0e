package explain

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-gateway/tandem/cmd/internal/adminport"
	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/pd/cost"
)

// FetchAll asks a gateway for the newest decisions of all that share its Redis: on requests that came
// within a time, at most so many.
func FetchAll(ctx context.Context, port adminport.Port, since time.Duration, limit int) (list gateway.DecisionList, err error) {
	err = port.Get(ctx, fmt.Sprintf("/debug/decisions?limit=%d&since=%s", limit, since), &list)
	return list, err
}

// PrintAllJSON prints a line of JSON for each decision, the oldest first, as a log is written.
func PrintAllJSON(out io.Writer, list gateway.DecisionList) error {
	lines := json.NewEncoder(out)
	for i := range slices.Backward(list.Decisions) {
		if err := lines.Encode(&list.Decisions[i]); err != nil {
			return fmt.Errorf("print the decisions: %w", err)
		}
	}
	return nil
}

// PrintSilent names the gateways whose decisions are not there, and why.
func PrintSilent(out io.Writer, list gateway.DecisionList) {
	for _, id := range slices.Sorted(maps.Keys(list.Silent)) {
		_, _ = fmt.Fprintf(out, "no answer of gateway %s: %s\n", id, list.Silent[id])
	}
}

// PrintAll prints a line for each decision, the newest first: the first token as predicted when the
// last servers were chosen and as measured since then, the sizes, the servers by their numbers, and
// what it came to unless it was served. No line is longer than Width, unless wide.
func PrintAll(out io.Writer, list gateway.DecisionList, wide bool) error {
	var pairs []cost.Explained
	for i := range list.Decisions {
		if last := lastOf(&list.Decisions[i]); last != nil && last.chosen != nil {
			pairs = append(pairs, last.chosen.Explained)
		}
	}
	servers := newNumbers(pairs)
	rows := [][]string{{"at        request", "pair", "predicted", "measured", "prompt", "cached", "output", "tries"}}
	for i := range list.Decisions {
		rows = append(rows, listRow(&list.Decisions[i], &servers))
	}
	lines := aligned(rows)
	for i := range list.Decisions {
		if how := list.Decisions[i].Outcome; how != "served" {
			lines[i+1] += "  " + how
		}
	}
	lines = append(append([]string{"first token in ms as predicted and measured; tokens"}, lines...), servers.legend()...)
	for _, line := range lines {
		if !wide {
			line = cutTo(line, Width)
		}
		if _, err := fmt.Fprintln(out, line); err != nil {
			return fmt.Errorf("print the decisions: %w", err)
		}
	}
	return nil
}

// cutTo is the beginning of a line that is too long.
func cutTo(line string, width int) string {
	if all := []rune(line); len(all) > width {
		return string(all[:width-3]) + "..."
	}
	return line
}

// idWidth is how much of a request's id a line shows: what tells two apart of those that the gateway
// makes, and enough for Fetch to find it.
const idWidth = 12

// lastAttempt is what the client got, and the servers that were chosen for it, nil where none is known.
type lastAttempt struct {
	*gateway.ChoiceStatus
	chosen *chosenTerms
}

// lastOf is the last attempt at a request, nil where it had none.
func lastOf(d *gateway.DecisionStatus) *lastAttempt {
	if len(d.Attempts) == 0 {
		return nil
	}
	a := &d.Attempts[len(d.Attempts)-1]
	return &lastAttempt{a, chosenOf(a)}
}

// listRow is a decision's line.
func listRow(d *gateway.DecisionStatus, servers *numbers) []string {
	row := []string{d.At.Local().Format(time.TimeOnly) + "  " + cutTo(d.RequestID, idWidth), "-", "-", "-", "-", "-", "-", strconv.Itoa(len(d.Attempts))}
	last := lastOf(d)
	if last == nil {
		return row
	}
	if last.chosen != nil {
		row[1], row[2] = strings.TrimPrefix(servers.pair(&last.chosen.Explained)[0], "->"), spanText(&last.chosen.First)
	}
	m := &last.Measured
	row[3], row[4], row[5], row[6] = spanText(m.FirstToken), strconv.Itoa(last.PromptTokens), countText(m.CachedTokens), countText(m.OutputTokens)
	return row
}
