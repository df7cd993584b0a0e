package top

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/tandem-gateway/tandem/gateway/live"
)

// Terminal is where a view is drawn again and again.
type Terminal struct {
	Keys    <-chan byte      // as they are typed
	Resized <-chan os.Signal // after each change of the size
	Size    func() Size
	Out     io.Writer
	Colour  bool
}

const (
	ctrlC = 3
	// enter takes the terminal's other screen without a cursor, leave gives both back.
	enter = "\x1b[?1049h\x1b[?25l"
	leave = "\x1b[?25h\x1b[?1049l"
)

// Watch draws what read returns, every interval and after each resize, until q or Ctrl-C is typed or
// the context ends. A gateway that does not answer is said above the last view.
func Watch(ctx context.Context, t Terminal, interval time.Duration, read func(context.Context) (live.State, error)) error {
	if _, err := io.WriteString(t.Out, enter); err != nil {
		return fmt.Errorf("draw: %w", err)
	}
	defer func() { _, _ = io.WriteString(t.Out, leave) }()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	state, failed := read(ctx)
	for {
		if err := t.draw(&state, failed); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case key, open := <-t.Keys:
			if !open || key == 'q' || key == ctrlC {
				return nil
			}
		case <-t.Resized:
		case <-tick.C:
			next, err := read(ctx)
			if failed = err; err == nil {
				state = next
			}
		}
	}
}

func (t *Terminal) draw(state *live.State, failed error) error {
	size := t.Size()
	var lines []string
	if failed != nil {
		lines = append(lines, clipped(strings.Join(strings.Fields(failed.Error()), " "), size.Width))
		size.Height--
	}
	if !state.At.IsZero() {
		lines = append(lines, Draw(state, size, t.Colour)...)
	}
	out := bufio.NewWriter(t.Out)
	_, _ = out.WriteString("\x1b[H")
	for i, line := range lines {
		if i > 0 {
			_, _ = out.WriteString("\r\n")
		}
		_, _ = out.WriteString(line + "\x1b[K")
	}
	_, _ = out.WriteString("\x1b[J")
	if err := out.Flush(); err != nil {
		return fmt.Errorf("draw: %w", err)
	}
	return nil
}
