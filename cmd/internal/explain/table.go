package explain

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/pd/cost"
)

// column is one of the table of alternatives. Its head has two lines.
type column struct {
	head  string // with a | where the line breaks
	value func(cost.Explained) string
	// spare is the order in which columns are left out where all are too wide: 1 goes first,
	// 0 stays.
	spare int
}

func number(of func(cost.Explained) float64) func(cost.Explained) string {
	return func(e cost.Explained) string { return strconv.FormatFloat(of(e), 'f', 1, 64) }
}

var columns = []column{
	{"total", number(func(e cost.Explained) float64 { return e.Total }), 0},
	{"misses", func(e cost.Explained) string { return strconv.Itoa(e.Misses) }, 15},
	{"first|token", number(func(e cost.Explained) float64 { return e.First }), 14},
	{"first|gap", number(func(e cost.Explained) float64 { return e.FirstGap }), 13},
	{"ready", number(func(e cost.Explained) float64 { return e.Ready }), 5},
	{"queue", number(func(e cost.Explained) float64 { return e.Queue }), 12},
	{"prefill", number(func(e cost.Explained) float64 { return e.Compute }), 11},
	{"transfer", number(func(e cost.Explained) float64 { return e.Transfer }), 10},
	{"kv|room", number(func(e cost.Explained) float64 { return e.KVRoom }), 4},
	{"step", number(func(e cost.Explained) float64 { return e.Step }), 1},
	{"decode|cost", number(func(e cost.Explained) float64 { return e.DecodeCost }), 7},
	{"delay to|others", number(func(e cost.Explained) float64 { return e.DelayToOthers }), 8},
	{"hardware|mismatch", number(func(e cost.Explained) float64 { return e.HardwareMismatch }), 3},
	{"eviction", number(func(e cost.Explained) float64 { return e.Eviction }), 3},
	{"prefill|holds", heldText, 9},
	{"decode|holds", func(e cost.Explained) string { return strconv.Itoa(e.DecodeCached) }, 6},
	{"moved|MB", number(func(e cost.Explained) float64 { return e.Moved / 1e6 }), 2},
}

// Columns are the names of all that an alternative may have, in order.
func Columns() (names []string) {
	for _, c := range columns {
		names = append(names, c.name())
	}
	return names
}

func (c *column) name() string { return strings.ReplaceAll(c.head, "|", " ") }

// isZero reports whether a column says nothing of any alternative.
func (c *column) isZero(all []cost.Explained) bool {
	return !slices.ContainsFunc(all, func(e cost.Explained) bool { return strings.Trim(c.value(e), "0.") != "" })
}

// heldText is what the server that prefills holds of the prompt, in tokens: on its GPU,
// and what else it has in slower memory.
func heldText(e cost.Explained) string {
	text := strconv.Itoa(e.PrefillCached)
	if e.PrefillCPU > 0 {
		text += fmt.Sprintf("+%d cpu", e.PrefillCPU)
	}
	if e.PrefillDisk > 0 {
		text += fmt.Sprintf("+%d disk", e.PrefillDisk)
	}
	return text
}

// alternatives prints the table: in full, or the columns that are not zero throughout. Where
// those are too wide, servers are numbered and named below, and then columns are left out.
func (p *printer) alternatives(a *gateway.ChoiceStatus) {
	if len(a.Alternatives) == 0 {
		return
	}
	p.say("")
	gap := ""
	if slices.ContainsFunc(a.Alternatives, func(e cost.Explained) bool { return e.FirstGap > 0 }) {
		gap = " + first gap"
	}
	p.say("times in ms: first token%s = ready + queue + prefill + transfer + kv room + step;", gap)
	p.say("total = first token%s + decode cost + delay to others + hardware mismatch + eviction", gap)
	if p.wide {
		for _, line := range table(a.Alternatives, columns, named) {
			p.say("%s", line)
		}
		return
	}
	shown := slices.DeleteFunc(slices.Clone(columns), func(c column) bool { return c.isZero(a.Alternatives) })
	lines := table(a.Alternatives, shown, named)
	servers := newNumbers(a.Alternatives)
	numbered := !fits(lines)
	if numbered {
		lines = table(a.Alternatives, shown, servers.pair)
	}
	var spared []string
	for ; !fits(lines); lines = table(a.Alternatives, shown, servers.pair) {
		i := leastNeeded(shown)
		if i < 0 {
			break
		}
		spared = append(spared, shown[i].name())
		shown = slices.Delete(shown, i, i+1)
	}
	for _, line := range lines {
		p.say("%s", line)
	}
	if numbered {
		for _, line := range servers.legend() {
			p.say("%s", line)
		}
	}
	if len(spared) > 0 {
		p.say("not shown for want of width: %s (--wide shows all)", strings.Join(spared, ", "))
	}
}

// leastNeeded is the column that is left out next, -1 if none may be.
func leastNeeded(shown []column) int {
	least := -1
	for i, c := range shown {
		if c.spare > 0 && (least < 0 || c.spare < shown[least].spare) {
			least = i
		}
	}
	return least
}

func fits(lines []string) bool {
	return !slices.ContainsFunc(lines, func(l string) bool { return utf8.RuneCountInString(l) > Width })
}

// table is the alternatives by rows, under a head of two lines. servers writes the first
// columns of a row: its head for nil.
func table(all []cost.Explained, shown []column, servers func(*cost.Explained) []string) []string {
	upper := slices.Repeat([]string{""}, len(servers(nil)))
	lower := servers(nil)
	for _, c := range shown {
		above, below, split := strings.Cut(c.head, "|")
		if !split {
			above, below = "", above
		}
		upper, lower = append(upper, above), append(lower, below)
	}
	rows := [][]string{upper, lower}
	for i := range all {
		row := servers(&all[i])
		for _, c := range shown {
			row = append(row, c.value(all[i]))
		}
		rows = append(rows, row)
	}
	return aligned(rows)
}

// aligned writes rows with two spaces between columns, the first of them flush left and the
// others flush right.
func aligned(rows [][]string) []string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var lines []string
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				b.WriteString(cell + pad)
				continue
			}
			b.WriteString("  " + pad + cell)
		}
		if line := strings.TrimRight(b.String(), " "); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

func arrow(e *cost.Explained) string {
	if e.Chosen {
		return "->"
	}
	return ""
}

// named are the servers of an alternative by their names.
func named(e *cost.Explained) []string {
	switch {
	case e == nil:
		return []string{"", "prefill", "decode"}
	case e.Prefill == "":
		return []string{arrow(e), "(alone)", e.Decode}
	}
	return []string{arrow(e), e.Prefill, e.Decode}
}

// numbers are the servers of a table by number, in the order in which they come.
type numbers struct{ prefill, decode []string }

func newNumbers(all []cost.Explained) (n numbers) {
	for _, e := range all {
		if e.Prefill != "" && !slices.Contains(n.prefill, e.Prefill) {
			n.prefill = append(n.prefill, e.Prefill)
		}
		if !slices.Contains(n.decode, e.Decode) {
			n.decode = append(n.decode, e.Decode)
		}
	}
	return n
}

// pair are the servers of an alternative by their numbers.
func (n *numbers) pair(e *cost.Explained) []string {
	if e == nil {
		return []string{"pair"}
	}
	mark := arrow(e)
	if mark == "" {
		mark = "  "
	}
	decode := fmt.Sprint(" D", 1+slices.Index(n.decode, e.Decode))
	if e.Prefill == "" {
		return []string{mark + "alone" + decode}
	}
	return []string{fmt.Sprint(mark, "P", 1+slices.Index(n.prefill, e.Prefill), decode)}
}

// legend says which number is which server.
func (n *numbers) legend() (lines []string) {
	for i, id := range n.prefill {
		lines = append(lines, shortened(fmt.Sprint("P", i+1, " = ", id)))
	}
	for i, id := range n.decode {
		lines = append(lines, shortened(fmt.Sprint("D", i+1, " = ", id)))
	}
	return lines
}

// shortened leaves out the middle of a line that is too long.
func shortened(line string) string {
	all := []rune(line)
	if len(all) <= Width {
		return line
	}
	return string(all[:Width/2]) + "..." + string(all[len(all)-Width/2+3:])
}
