// Package svg draws the charts of reports as elements of an HTML page, which styles them by
// their classes.
package svg

import (
	"fmt"
	"html"
	"html/template"
	"strings"
)

// Drawing collects the elements of one SVG. Its measures are pixels.
type Drawing struct {
	Width, Height float64

	elements strings.Builder
}

// Add appends an element; what may hold anything is to be escaped.
func (d *Drawing) Add(format string, args ...any) { fmt.Fprintf(&d.elements, format, args...) }

// Text appends a text, which is escaped. anchor is start, middle or end.
func (d *Drawing) Text(x, y float64, anchor, class, text string) {
	d.Add(`<text x="%.1f" y="%.1f" text-anchor="%s" class="%s">%s</text>`, x, y, anchor, class, html.EscapeString(text))
}

// Elements are those added so far, for an SVG that stands by itself.
func (d *Drawing) Elements() string { return d.elements.String() }

// HTML is the drawing. The label says what it shows to those who do not see it.
func (d *Drawing) HTML(label string) template.HTML {
	return template.HTML(fmt.Sprintf(`<svg viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" role="img" aria-label="%s">%s</svg>`,
		d.Width, d.Height, d.Width, d.Height, html.EscapeString(label), d.elements.String()))
}
