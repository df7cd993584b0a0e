package api

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

const sampleStream = ": hello\n\ndata: {\"a\":1}\n\nevent: x\r\nid: 7\r\ndata: {\"b\":2}\r\n\r\ndata: one\ndata: two\n\ndata:[DONE]\n\n"

var sampleData = []string{`{"a":1}`, `{"b":2}`, "one\ntwo", "[DONE]"}

func readAll(r io.Reader) (data []string, raw []byte, err error) {
	s := NewEventReader(r)
	for {
		ev, err := s.Read()
		if err != nil {
			return data, raw, err
		}
		data = append(data, string(ev.Data))
		raw = append(raw, ev.Raw...)
	}
}

func TestSSE_SplitsAnywhere(t *testing.T) {
	for cut := range len(sampleStream) {
		in := io.MultiReader(strings.NewReader(sampleStream[:cut]), strings.NewReader(sampleStream[cut:]))
		data, raw, err := readAll(in)
		if !errors.Is(err, io.EOF) || strings.Join(data, "|") != strings.Join(sampleData, "|") || string(raw) != sampleStream {
			t.Fatalf("cut at %d: %q, %v", cut, data, err)
		}
	}
	if data, _, err := readAll(iotest.DataErrReader(io.MultiReader(strings.NewReader(sampleStream), iotest.ErrReader(errors.ErrUnsupported)))); !errors.Is(err, errors.ErrUnsupported) || len(data) != 4 {
		t.Fatalf("with an error at its end: %q, %v", data, err)
	}
	if data, _, err := readAll(iotest.OneByteReader(strings.NewReader(sampleStream))); !errors.Is(err, io.EOF) || len(data) != 4 {
		t.Fatalf("byte by byte: %q, %v", data, err)
	}
}

// A comment that stands alone is returned by itself where it is wanted, and else with the event behind it; wherever the
// network cuts.
func TestSSE_CommentsThatStandAlone(t *testing.T) {
	const stream = "\n: a\r\n\r\n: b\ndata: 1\n\n: c\n\n"
	for comments, want := range map[bool][]string{false: {"\n: a\r\n\r\n: b\ndata: 1\n\n"}, true: {"\n: a\r\n\r\n", ": b\ndata: 1\n\n", ": c\n\n"}} {
		for _, cut := range []int{1, 2, 3, 100} {
			in := NewEventReader(&pieces{[]byte(stream), cut})
			in.Comments = comments
			var got []string
			for {
				ev, err := in.Read()
				if err != nil {
					break
				}
				got = append(got, string(ev.Raw))
				if (ev.Data == nil) != !strings.Contains(string(ev.Raw), "data") {
					t.Errorf("%q has the data %q", ev.Raw, ev.Data)
				}
			}
			in.Close()
			if !slices.Equal(got, want) {
				t.Errorf("comments %v, %d bytes at a time: %q", comments, cut, got)
			}
		}
	}
}

// pieces is a reader of so many bytes at a time.
type pieces struct {
	rest []byte
	size int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.rest[:min(p.size, len(p.rest))])
	p.rest = p.rest[n:]
	return n, nil
}

func TestSSE_AStreamCutInsideAnEventIsNoCleanEnd(t *testing.T) {
	for _, in := range []string{"data: {\"a\":1}", "data: {\"a\":1}\n", "data: x\n\ndata: {\"tr", "event: x\n"} {
		if _, _, err := readAll(strings.NewReader(in)); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q ends with %v", in, err)
		}
	}
}

func TestSSE_LongLinesPassAndEndlessOnesEnd(t *testing.T) {
	long := "data: " + strings.Repeat("x", 1<<20) + "\n\n"
	data, raw, err := readAll(strings.NewReader(long))
	if !errors.Is(err, io.EOF) || len(data) != 1 || len(data[0]) != 1<<20 || string(raw) != long {
		t.Errorf("1 MiB line: %d events, %v", len(data), err)
	}
	endless := io.MultiReader(strings.NewReader("data: "), neverEnding('x'))
	if _, _, err := readAll(endless); !errors.Is(err, ErrEventTooLong) {
		t.Errorf("endless line: %v", err)
	}
}

type neverEnding byte

func (b neverEnding) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(b)
	}
	return len(p), nil
}

func TestSSE_ReplacedDataKeepsTheOtherLines(t *testing.T) {
	s := NewEventReader(strings.NewReader("event: response.completed\nid: 3\ndata: {\"old\":1}\n\n"))
	ev, err := s.Read()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(ev.AppendWithData(nil, []byte(`{"new":1}`))), "event: response.completed\nid: 3\ndata: {\"new\":1}\n\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzSSE(f *testing.F) {
	f.Add([]byte(sampleStream), 3)
	f.Add([]byte("data:\n\n\n\ndata: \r\r\n\n"), 1)
	f.Fuzz(func(t *testing.T, in []byte, cut int) {
		whole, raw, err := readAll(bytes.NewReader(in))
		if len(in) > 0 {
			cut = (cut%len(in) + len(in)) % len(in)
		} else {
			cut = 0
		}
		parts, rawParts, errParts := readAll(io.MultiReader(bytes.NewReader(in[:cut]), bytes.NewReader(in[cut:])))
		if strings.Join(whole, "\x00") != strings.Join(parts, "\x00") || !bytes.Equal(raw, rawParts) || !errors.Is(errParts, err) {
			t.Fatalf("a cut at %d changes the events", cut)
		}
		if !bytes.HasPrefix(in, raw) {
			t.Fatal("events are not the stream's own bytes")
		}
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("ended with %v", err)
		}
	})
}

func TestSSE_OnlyAWholeEventCountsAsBuffered(t *testing.T) {
	for rest, want := range map[string]bool{
		"":                      false,
		"data: {\"tr":           false,
		"data: {}\n":            false,
		": ping\n\n":            false,
		"event: x\n":            false,
		"data: {}\n\n":          true,
		": ping\n\ndata: 1\n\n": true,
		"data: 1\r\n\r\nda":     true,
	} {
		s := NewEventReader(strings.NewReader("data: first\n\n" + rest))
		if _, err := s.Read(); err != nil {
			t.Fatal(err)
		}
		if got := s.Buffered(); got != want {
			t.Errorf("%q: %v", rest, got)
		}
	}
}

// A piece of a stream is taken apart into its events, as many as the caller wants.
func TestEvents_AreThoseOfThePiece(t *testing.T) {
	piece := []byte(": ping\n\ndata: a\n\nevent: x\ndata: b\n\ndata: c\n\n")
	var all []string
	for data := range Events(piece) {
		all = append(all, string(data))
	}
	if !slices.Equal(all, []string{"a", "b", "c"}) {
		t.Errorf("they are %q", all)
	}
	n := 0
	for range Events(piece) {
		if n++; n == 2 {
			break
		}
	}
	if n != 2 {
		t.Errorf("%d were yielded", n)
	}
}

// An event whose data are replaced is written behind what is there, into the memory that there is.
func TestEvent_AppendWithDataUsesTheMemoryThatThereIs(t *testing.T) {
	ev, err := NewEventReader(strings.NewReader("event: x\ndata: {\"a\":1}\ndata: 2\n\n")).Read()
	if err != nil {
		t.Fatal(err)
	}
	out := append(make([]byte, 0, 64), "before"...)
	if n := testing.AllocsPerRun(10, func() { out = ev.AppendWithData(out[:6], []byte("5")) }); n != 0 || string(out) != "beforeevent: x\ndata: 5\n\n" {
		t.Errorf("%q, with %v allocations", out, n)
	}
}

// A long event, such as the first one with the ids of a prompt, leaves no room behind that the stream would
// hold to its end.
func TestEventReader_KeepsNoRoomOfALongEvent(t *testing.T) {
	in := NewEventReader(strings.NewReader("data: " + strings.Repeat("1,", 200<<10) + "\n\ndata: a\n\ndata: b\n\n"))
	for _, want := range []int{400 << 10, 1, 1} {
		ev, err := in.Read()
		if err != nil || len(ev.Data) != want {
			t.Fatalf("%d bytes of data, want %d: %v", len(ev.Data), want, err)
		}
	}
	if in.long != nil || len(in.buf) > keptEvent {
		t.Errorf("%d bytes are kept", len(in.buf))
	}
}

// Events come whole where a buffer ends within them, and as they stand behind a long one.
func TestEventReader_ReadsEventsOfAllLengths(t *testing.T) {
	for _, size := range append([]int{keptEvent}, longSizes[:3]...) {
		for _, length := range []int{size/2 - 9, size/2 - 8, size/2 - 7, size - 9, size - 8, size - 7, size, size + keptEvent} {
			long := "data: " + strings.Repeat("x", length) + "\n\n"
			data, raw, err := readAll(strings.NewReader(long + long + "data: b\n\n" + long))
			want := []string{long[6 : 6+length], long[6 : 6+length], "b", long[6 : 6+length]}
			if !errors.Is(err, io.EOF) || !slices.Equal(data, want) || string(raw) != long+long+"data: b\n\n"+long {
				t.Fatalf("%d bytes of data: %d events, %v", length, len(data), err)
			}
		}
	}
	for excess, want := range map[int]error{0: io.EOF, 1: ErrEventTooLong} {
		if _, _, err := readAll(strings.NewReader("data: " + strings.Repeat("x", MaxEvent+excess-len("data: \n\n")) + "\n\n")); !errors.Is(err, want) {
			t.Errorf("%d bytes above the bound: %v", excess, err)
		}
	}
}

// That an event is looked for ahead changes nothing of the one that was read.
func TestEventReader_AnEventOutlivesTheLookAhead(t *testing.T) {
	in := NewEventReader(strings.NewReader("data: a\ndata: b\n\ndata: c\ndata: d\n\n"))
	ev, err := in.Read()
	if err != nil || !in.Buffered() || string(ev.Data) != "a\nb" {
		t.Errorf("%q, %v", ev.Data, err)
	}
	if ev, err = in.Read(); err != nil || string(ev.Data) != "c\nd" {
		t.Errorf("%q, %v", ev.Data, err)
	}
}

// A reader that returns nothing for ever ends the stream.
func TestEventReader_EndsWhereNothingComes(t *testing.T) {
	if _, err := NewEventReader(never{}).Read(); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("%v", err)
	}
}

type never struct{}

func (never) Read([]byte) (int, error) { return 0, nil }

// lateStream is a reader that takes room late: what it says comes in pieces, with an error behind or with the last.
type lateStream struct {
	t        *testing.T
	in       *EventReader
	pieces   []string
	end      error
	withLast bool
}

func (l *lateStream) Read(p []byte) (n int, err error) {
	if len(l.pieces) == 0 {
		return 0, l.end
	}
	n = copy(p, l.pieces[0])
	if l.pieces[0] = l.pieces[0][n:]; l.pieces[0] == "" {
		l.pieces = l.pieces[1:]
	}
	if len(l.pieces) == 0 && l.withLast {
		err = l.end
	}
	return n, err
}

func (l *lateStream) ReadLate(room interface {
	Take() []byte
	Release()
}) (int, error) {
	room.Take()
	room.Release() // it waits
	if l.in.usual != nil || l.in.long != nil {
		l.t.Error("it waits with a buffer")
	}
	if len(l.pieces) > 0 && l.pieces[0] == "" { // the end of a chunk
		l.pieces = l.pieces[1:]
		return 0, nil
	}
	n, err := l.Read(room.Take())
	if n == 0 {
		room.Release()
	}
	return n, err
}

// Events are the same where they are waited for, wherever they are cut, and whatever ends them.
func TestEventReader_Awaits(t *testing.T) {
	long := "data: " + strings.Repeat("1,", 200<<10) + "\n\n"
	for _, text := range []string{sampleStream, long + "data: a\n\n", sampleStream + "data: {\"tr", ""} {
		want, raw, wantErr := readAll(strings.NewReader(text))
		for cut := 0; cut <= len(text); cut += max(1, len(text)/150) {
			for _, withLast := range []bool{false, true} {
				l := &lateStream{t: t, pieces: []string{"", text[:cut], "", text[cut:]}, end: io.EOF, withLast: withLast}
				l.pieces = slices.DeleteFunc(l.pieces, func(s string) bool { return s == "" && cut%2 == 0 })
				in := NewEventReader(l)
				l.in = in
				var data []string
				var all []byte
				var err error
				for err == nil {
					in.Await()
					var ev Event
					if ev, err = in.Read(); err == nil {
						data, all = append(data, string(ev.Data)), append(all, ev.Raw...)
					}
				}
				if !slices.Equal(data, want) || !bytes.Equal(all, raw) || !errors.Is(err, wantErr) {
					t.Fatalf("%.40q cut at %d, with last %v: %.99q, %v, want %v", text, cut, withLast, data, err, wantErr)
				}
				in.Close()
				in.Close()
				if in.usual != nil || in.long != nil || in.buf != nil {
					t.Fatal("memory is kept")
				}
			}
		}
	}
}

// What was read and not returned is not lost by waiting: there is nothing to wait for.
func TestEventReader_AwaitsNothingThatIsThere(t *testing.T) {
	l := &lateStream{t: t, pieces: []string{"data: a\n\ndata: b\n\ndata: c"}, end: io.ErrUnexpectedEOF, withLast: true}
	in := NewEventReader(l)
	l.in = in
	for _, want := range []string{"a", "b"} {
		in.Await()
		if ev, err := in.Read(); err != nil || string(ev.Data) != want {
			t.Fatalf("%q, %v", ev.Data, err)
		}
	}
	in.Await()
	in.Await()
	if _, err := in.Read(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
}
