package flame

import (
	"errors"
	"fmt"
	"html"
	"io"
	"slices"
	"strings"

	"github.com/google/pprof/profile"

	"github.com/tandem-gateway/tandem/loadtest/svg"
)

// frame is a function as it was called by the frames below it.
type frame struct {
	name  string
	value int64 // of the profile's last sample type: nanoseconds of CPU, or bytes in use
	calls map[string]*frame
}

// errEmpty: the profile has no samples.
var errEmpty = errors.New("the profile has no samples")

// merge reads a profile as one tree of frames.
func merge(p *profile.Profile) (*frame, error) {
	root := &frame{name: "all"}
	for _, s := range p.Sample {
		value := s.Value[len(s.Value)-1]
		at := root
		at.value += value
		for _, location := range slices.Backward(s.Location) {
			for _, line := range slices.Backward(location.Line) { // the innermost of inlined calls is first
				at = at.call(line.Function.Name)
				at.value += value
			}
		}
	}
	if root.value == 0 {
		return nil, errEmpty
	}
	return root, nil
}

func (f *frame) call(name string) *frame {
	if f.calls == nil {
		f.calls = map[string]*frame{}
	}
	if f.calls[name] == nil {
		f.calls[name] = &frame{name: name}
	}
	return f.calls[name]
}

// widest are the frames that it calls, the widest first.
func (f *frame) widest() (all []*frame) {
	for _, called := range f.calls {
		all = append(all, called)
	}
	slices.SortFunc(all, func(a, b *frame) int {
		if a.value != b.value {
			return int(min(1, max(-1, b.value-a.value)))
		}
		return strings.Compare(a.name, b.name)
	})
	return all
}

const (
	width    = 1200.0
	row      = 17.0
	narrow   = 0.6 // pixels below which a frame is left out, with all that it calls
	letter   = 6.3 // pixels that a letter takes
	headline = 24.0
)

// WriteSVG draws a profile, as net/http/pprof gives it.
func WriteSVG(w io.Writer, title string, of io.Reader) error {
	p, err := profile.Parse(of)
	if err != nil {
		return fmt.Errorf("read the profile: %w", err)
	}
	root, err := merge(p)
	if err != nil {
		return err
	}
	d := &svg.Drawing{Width: width}
	rows := draw(d, root, root.value, 0, 0)
	d.Height = headline + row*float64(rows) + 6
	_, err = fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="monospace" font-size="10.5">`+
		`<rect width="100%%" height="100%%" fill="white"/><text x="6" y="15" font-size="13">%s: %s</text>%s</svg>`+"\n",
		d.Width, d.Height, html.EscapeString(title), amount(root.value, p.SampleType[len(p.SampleType)-1]), d.Elements())
	return err
}

// amount is a value with its unit.
func amount(value int64, of *profile.ValueType) string {
	switch of.Unit {
	case "nanoseconds":
		return fmt.Sprintf("%.2f s of CPU", float64(value)/1e9)
	case "bytes":
		return fmt.Sprintf("%.1f MB", float64(value)/1e6)
	}
	return fmt.Sprintf("%d %s", value, of.Type)
}

// draw draws a frame and all above it, and returns how many rows they take.
func draw(d *svg.Drawing, f *frame, all int64, x float64, depth int) (rows int) {
	wide := width * float64(f.value) / float64(all)
	if wide < narrow {
		return depth
	}
	y := headline + row*float64(depth)
	share := 100 * float64(f.value) / float64(all)
	d.Add(`<g><title>%s: %.1f %%</title><rect x="%.1f" y="%.1f" width="%.1f" height="%.0f" fill="%s" stroke="white" stroke-width="0.5"/>`,
		html.EscapeString(f.name), share, x, y, wide, row-1, colour(f.name))
	if fits := int((wide - 4) / letter); fits > 3 {
		name := shortName(f.name)
		d.Text(x+3, y+row-5, "start", "", name[:min(len(name), fits)])
	}
	d.Add(`</g>`)
	rows = depth + 1
	for _, called := range f.widest() {
		rows = max(rows, draw(d, called, all, x, depth+1))
		x += width * float64(called.value) / float64(all)
	}
	return rows
}

// shortName leaves the path of a function's package out.
func shortName(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

// colour tells ours, the runtime and the kernel's calls from libraries.
func colour(name string) string {
	switch {
	case strings.HasPrefix(name, "github.com/tandem-gateway/"):
		return "#f0a35e"
	case strings.HasPrefix(name, "runtime."), strings.HasPrefix(name, "gcWriteBarrier"):
		return "#c9b7d8"
	case strings.Contains(name, "syscall"), strings.HasPrefix(name, "internal/poll"):
		return "#9fc2e6"
	}
	return "#e8d98a"
}
