package loadtest

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// readAll returns the events of text as "name|data" and what ended them.
func readAll(r io.Reader) (events []string, end error) {
	reader := newEventReader(r)
	for {
		ev, err := reader.next()
		if err != nil {
			return events, err
		}
		events = append(events, ev.name+"|"+string(ev.data))
	}
}

func TestEvents(t *testing.T) {
	for name, c := range map[string]struct {
		text   string
		events string
		end    Kind // empty: io.EOF
	}{
		"none":               {"", "", ""},
		"one":                {"data: a\n\n", "|a", ""},
		"without a space":    {"data:a\n\n", "|a", ""},
		"one space only":     {"data:  a\n\n", "| a", ""},
		"CRLF":               {"data: a\r\n\r\ndata: b\r\n\r\n", "|a |b", ""},
		"two lines":          {"data: a\ndata: b\n\n", "|a\nb", ""},
		"named":              {"event: error\ndata: {}\n\n", "error|{}", ""},
		"id and retry":       {"id: 3\nretry: 5\ndata: a\n\n", "|a", ""},
		"comments":           {": ping\n\n: ping\ndata: a\n\n:\n\n", "|a", ""},
		"extra blank lines":  {"\n\ndata: a\n\n\n\ndata: b\n\n", "|a |b", ""},
		"long line":          {"data: " + strings.Repeat("x", 100_000) + "\n\n", "|" + strings.Repeat("x", 100_000), ""},
		"ends in an event":   {"data: a\n\ndata: b\n", "|a", Truncated},
		"ends in a line":     {"data: a\n\ndata: {\"cho", "|a", Truncated},
		"bare JSON":          {"{\"error\": 1}\n\n", "", Malformed},
		"HTML":               {"<html>\n", "", Malformed},
		"glued lines":        {"data: a\n\natad: b\n\n", "|a", Malformed},
		"too long a line":    {"data: " + strings.Repeat("x", maxEvent+20_000) + "\n\n", "", Malformed},
		"too many lines":     {strings.Repeat("data: "+strings.Repeat("x", 1000)+"\n", 1100) + "\n", "", Malformed},
		"binary":             {"\x00\x01\x02\n", "", Malformed},
		"field without data": {"data\n\n", "|", ""},
	} {
		for how, r := range map[string]io.Reader{
			"whole":        strings.NewReader(c.text),
			"byte by byte": iotest.OneByteReader(strings.NewReader(c.text)),
		} {
			events, end := readAll(r)
			if got := strings.Join(events, " "); got != c.events {
				t.Errorf("%s, %s: events %.200q, want %.200q", name, how, got, c.events)
			}
			if clean := errors.Is(end, io.EOF); clean != (c.end == "") || !clean && kindOf(context.Background(), end) != c.end {
				t.Errorf("%s, %s: ended with %v, want kind %q", name, how, end, c.end)
			}
		}
	}
}

// However the bytes arrive, the events are the same, and every input ends.
func FuzzEvents_SplitsDoNotMatter(f *testing.F) {
	f.Add("data: a\r\n\r\nevent: error\ndata: b\n\n")
	f.Add(": ping\n\ndata\n\nfoo\n")
	f.Fuzz(func(t *testing.T, text string) {
		whole, end1 := readAll(strings.NewReader(text))
		split, end2 := readAll(iotest.OneByteReader(strings.NewReader(text)))
		if strings.Join(whole, "\x00") != strings.Join(split, "\x00") || end1.Error() != end2.Error() {
			t.Errorf("%q: %q %v, split: %q %v", text, whole, end1, split, end2)
		}
	})
}
