package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tandem-gateway/tandem/loadtest/svg"
)

// pairChoice is one row of the table in docs/pair.md: what "tandem explain" printed of a real request.
type pairChoice struct {
	name   string
	chosen bool
	first  float64 // ms until the first token
	terms  []float64
	total  float64
}

// pairTerms are the columns that add up to the total, in the order in which they are drawn, and after
// how many of them the first token is there.
var pairTerms = []struct {
	column int
	name   string
}{{2, "prefill"}, {3, "transfer"}, {4, "step"}, {5, "decode cost"}, {6, "delay to others"}}

const pairTermsOfFirst = 3

// readPairChoices reads the table of docs/pair.md, the cheapest first.
func readPairChoices(page string) (choices []pairChoice, err error) {
	_, table, found := strings.Cut(page, "\npair ")
	table, _, closed := strings.Cut(table, "\n```")
	if !found || !closed {
		return nil, errors.New("pair.md has no table of alternatives")
	}
	for _, line := range strings.Split(table, "\n")[1:] {
		name, chosen := strings.CutPrefix(line, "->")
		fields := strings.Fields(name)
		if len(fields) != 12 { // two servers, or "alone" and one, and ten figures
			return nil, fmt.Errorf("pair.md: %q is not a row of two names and ten figures", line)
		}
		c := pairChoice{name: fields[0] + " to " + fields[1], chosen: chosen}
		if fields[0] == "alone" {
			c.name = fields[1] + " alone"
		}
		var numbers []float64
		for _, text := range fields[2:] {
			n, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return nil, fmt.Errorf("pair.md: %q: %w", line, err)
			}
			numbers = append(numbers, n)
		}
		c.total, c.first = numbers[0], numbers[1]
		for _, t := range pairTerms {
			c.terms = append(c.terms, numbers[t.column])
		}
		choices = append(choices, c)
	}
	return choices, nil
}

const pairStyle = `<style>
svg{font:13px system-ui,sans-serif;background:#fff} text{fill:#1f2328} .soft{fill:#656d76} .chosen{font-weight:600}
.t0{fill:#1f4e79} .t1{fill:#3b8ac4} .t2{fill:#a9cbe6} .t3{fill:#b9bfc6} .t4{fill:#e0a458} .first{stroke:#1f2328;stroke-width:1.5} .grid{stroke:#d8dee4}
@media (prefers-color-scheme: dark){svg{background:#0d1117} text{fill:#e6edf3} .soft{fill:#9198a1} .t0{fill:#79b8e8} .t1{fill:#4184b8} .t2{fill:#2b5478} .t3{fill:#59636e} .t4{fill:#c98a3c} .first{stroke:#e6edf3} .grid{stroke:#262c34}}
</style>`

// pairPicture draws the alternatives of docs/pair.md as bars of their terms, the cheapest above: the
// shortest bar is the choice, and a mark on each says when the first token comes.
func pairPicture(page string) (string, error) {
	choices, err := readPairChoices(page)
	if err != nil {
		return "", err
	}
	const left, width, row, top = 84.0, 500.0, 30.0, 58.0
	most := 0.0
	for i := range choices {
		most = max(most, choices[i].total)
	}
	scale := width / most
	d := &svg.Drawing{Width: left + width + 76, Height: top + row*float64(len(choices)) + 44}
	drawPairLegend(d, left)
	bottom := top + row*float64(len(choices))
	for ms := 0.0; ms <= most; ms += 100 {
		x := left + ms*scale
		d.Add(`<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" class="grid"/>`, x, x, top-4, bottom)
		d.Text(x, bottom+16, "middle", "soft", fmt.Sprintf("%.0f", ms))
	}
	d.Text(left+width, bottom+34, "end", "soft", "milliseconds that the choice is predicted to cost")
	for i, c := range choices {
		y, class := top+row*float64(i), ""
		if c.chosen {
			class = "chosen"
		}
		d.Text(left-10, y+16, "end", class, c.name)
		x := left
		for k, ms := range c.terms {
			d.Add(`<rect x="%.1f" y="%.1f" width="%.1f" height="20" class="t%d"/>`, x, y+1, ms*scale, k)
			x += ms * scale
		}
		first := left + c.first*scale
		d.Add(`<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" class="first"/>`, first, first, y-2, y+24)
		total := fmt.Sprintf("%.0f", c.total)
		if c.chosen {
			total += ": chosen"
		}
		d.Text(x+6, y+16, "start", class, total)
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" role="img"><title>%s</title>%s%s</svg>`+"\n",
		d.Width, d.Height, d.Width, d.Height, "The alternatives of one request, each a bar of its predicted terms", pairStyle, d.Elements()), nil
}

// drawPairLegend names the terms in two lines: those of the first token, and what is counted besides.
func drawPairLegend(d *svg.Drawing, left float64) {
	x, y := left, 16.0
	for k, t := range pairTerms {
		if k == pairTermsOfFirst {
			d.Add(`<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" class="first"/>`, x+5, x+5, y-11, y+1)
			d.Text(x+14, y, "start", "soft", "the first token comes")
			x, y = left, y+20
		}
		d.Add(`<rect x="%.1f" y="%.1f" width="10" height="10" class="t%d"/>`, x, y-9, k)
		d.Text(x+14, y, "start", "soft", t.name)
		x += 32 + 7*float64(len(t.name))
	}
	d.Text(x-14, y, "start", "soft", "(streams that run already)")
}
