package transcript

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
)

// Packed ids are the same ids, whatever their size and the white space between them, and what is no list of
// ids is none.
func TestPackIDs_AreTheSameIDs(t *testing.T) {
	for text, want := range map[string]string{
		"1,2,3": "1,2,3", "0": "0", "127,128,16383,16384,151935": "127,128,16383,16384,151935", "1, 2 ,\n3": "1,2,3", "999999999999999999": "999999999999999999", "1,2,3,4,5,6,7,8,9": "1,2,3,4,5,6,7,8,9", "12345678": "12345678", "0,10,200,3": "0,10,200,3",
	} {
		if p, ok := packIDs([]byte(text)); !ok || string(p.appendTo(nil)) != want || p.count != 1+strings.Count(want, ",") {
			t.Errorf("%q is %d ids, %q", text, p.count, p.appendTo(nil))
		}
	}
	for _, text := range []string{"-1", "1.5", "1,,2", "1,", ",1", "1 2", "a", "1e3", "", "1 2,3", "[1]", "1],[2", "\"1\"", "1;2", "1/2", "1:2", "01", "2,00", "1,2,3,4,5,6,07"} {
		if got, ok := packIDs([]byte(text)); ok {
			t.Errorf("%q is packed as %v", text, got)
		}
	}
}

// Ids of all lengths, with and without white space, stay the same ids wherever they stand.
func TestPackIDs_KeepsIDsOfAllLengths(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var ids []string
		for range random.IntN(60) + 1 {
			ids = append(ids, strconv.FormatUint(random.Uint64N(uint64(1)<<random.IntN(59)+1), 10))
		}
		want := strings.Join(ids, ",")
		for _, comma := range []string{",", ", ", " ,"} {
			if p, ok := packIDs([]byte(strings.Join(ids, comma))); !ok || string(p.appendTo(nil)) != want {
				t.Fatalf("%s is %s", want, p.appendTo(nil))
			}
		}
	}
}

// idText is a list of ids.
func idText(from, n int) string {
	var ids []string
	for i := range n {
		ids = append(ids, strconv.Itoa(from+i))
	}
	return strings.Join(ids, ",")
}

// Prompts that begin alike share the memory of that, of whatever length they are, and each is whole.
func TestPackIDs_ShareABeginning(t *testing.T) {
	begin := idText(10000, 5*1024)
	runs := len(begin) / (sharedText + len("12345,"))
	for _, rest := range []int{0, 1, 1023, 1024, 1025} {
		a, b := begin, begin
		if rest > 0 {
			a, b = begin+","+idText(7, rest), begin+","+idText(8, rest)
		}
		p, _ := packIDs([]byte(a))
		q, _ := packIDs([]byte(b))
		if string(p.appendTo(nil)) != a || string(q.appendTo(nil)) != b {
			t.Errorf("%d ids behind: they are others", rest)
		}
		if want := 5*1024 + rest; p.count != want || q.count != want {
			t.Errorf("%d and %d ids, want %d", p.count, q.count, want)
		}
		if len(p.shared) < runs || !slices.Equal(p.shared[:runs], q.shared[:runs]) || len(p.rest) > sharedText {
			t.Errorf("%d ids behind: %d bytes are not shared", rest, len(p.rest))
		}
	}
	for _, bad := range []string{begin + ",x", begin + ",", "x," + begin, begin + ",,1"} {
		if _, ok := packIDs([]byte(bad)); ok {
			t.Errorf("what ends with %s is packed", bad[len(bad)-9:])
		}
	}
}

// A text has one name, and one that differs in a single bit, or is longer, another: of each table its own.
func TestRunTable_NamesTexts(t *testing.T) {
	text, scratch := []byte(idText(1000, 2000)), new([]byte)
	seen := map[runName]string{newRunTable().nameOf(text, scratch): "of another table"}
	note := func(how string, text []byte) {
		name := openRuns.nameOf(text, scratch)
		if other, is := seen[name]; is {
			t.Errorf("%s has the name of the one %s", how, other)
		}
		seen[name] = how
	}
	note("as it is", text)
	if openRuns.nameOf(bytes.Clone(text), new([]byte)) != openRuns.nameOf(text, scratch) {
		t.Error("equal texts have different names")
	}
	for i := range text {
		text[i] ^= 1
		note("changed at "+strconv.Itoa(i), text)
		text[i] ^= 1
	}
	note("with a zero more", append(slices.Clone(text), 0))
	note("with a byte less", text[:len(text)-1])
	if n := testing.AllocsPerRun(10, func() { openRuns.nameOf(text, scratch) }); n != 0 {
		t.Errorf("a name costs %v allocations", n)
	}
}

// Where there are no names ids are kept all the same, each stream's for itself.
func TestPackIDs_ShareNothingWithoutNames(t *testing.T) {
	names := openRuns.names
	defer func() { openRuns.names = names }()
	openRuns.names = nil
	text := idText(500_000, 4096)
	if p, ok := packIDs([]byte(text)); !ok || p.shared != nil || string(p.appendTo(nil)) != text {
		t.Errorf("%d runs are shared, or the ids are others", len(p.shared))
	}
}

// What is packed is a list of whole numbers as JSON has it, whether another stream has its digits or not: who
// reads an event takes the word of ReadPrompt for that.
func FuzzPackIDs_OnlyWhatJSONTakes(f *testing.F) {
	for _, text := range []string{"1,2,3", "0", "01", "1,00", "1,007,123456,1234567", "10,0,7", "1, 2 ,\n3", "-1", "1.5", "1e3", "1,,2", "1,", ",1", "", " ", "1 2", "a", "[1]", "999999999999999999", "9999999999999999999", "12345678,0123456"} {
		f.Add(text, 1)
		f.Add(text, 1000)
	}
	f.Fuzz(func(t *testing.T, text string, times int) {
		long := strings.Repeat(text+",", max(0, min(times, 4000))) + text
		for range 2 { // others, and those that another stream has
			p, ok := packIDs([]byte(long))
			if !ok {
				continue
			}
			if !json.Valid([]byte("["+long+"]")) || strings.Trim(long, "0123456789, \t\r\n") != "" {
				t.Fatalf("%.99q is packed", long)
			}
			if got, want := string(p.appendTo(nil)), strings.Join(strings.Fields(long), ""); got != want {
				t.Fatalf("%.99q is %.99q", want, got)
			}
		}
	})
}

// What no stream has any more is let go of.
func TestPackIDs_LetsGoOfWhatNoStreamHas(t *testing.T) {
	text := []byte(idText(300_000, 4096))
	p, _ := packIDs(text)
	name := openRuns.nameOf(text[:sharedText+bytes.IndexByte(text[sharedText:], ',')], new([]byte))
	if openRuns.find(name) != p.shared[0] {
		t.Fatal("it is not shared")
	}
	runtime.KeepAlive(p)
	known := func() bool {
		openRuns.mu.Lock()
		defer openRuns.mu.Unlock()
		_, is := openRuns.runs[name]
		return is
	}
	for deadline := time.Now().Add(10 * time.Second); known(); runtime.GC() {
		if time.Now().After(deadline) {
			t.Fatal("it is still there")
		}
	}
}

// BenchmarkPackIDs packs the ids of a prompt of 220 KB: of one that no stream has, and of one that another has.
func BenchmarkPackIDs(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 2))
	var ids []string
	for range 55_000 {
		ids = append(ids, strconv.Itoa(random.IntN(random.IntN(150_000)+1)))
	}
	text := []byte(strings.Join(ids, ","))
	b.Run("new", func(b *testing.B) {
		for b.Loop() {
			openRuns.mu.Lock()
			clear(openRuns.runs)
			openRuns.mu.Unlock()
			if _, ok := packIDs(text); !ok {
				b.Fatal("they are not packed")
			}
		}
	})
	b.Run("shared", func(b *testing.B) {
		other, _ := packIDs(text)
		for b.Loop() {
			if _, ok := packIDs(text); !ok {
				b.Fatal("they are not packed")
			}
		}
		runtime.KeepAlive(other)
	})
}

// A stream goes on by ids when the client's text is gone, unless that had more than text; by text it cannot,
// so that the text is kept.
func TestDropText_TheIDsAreEnough(t *testing.T) {
	const said = `{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"},"token_ids":[7]}],"prompt_token_ids":[1,2,151935]}`
	for name, c := range map[string]struct {
		content string
		byText  bool
		dropped bool
		body    string // of the continuation; "": there is none
	}{
		"text":    {`"hi"`, false, true, `{"model":"m","prompt":[1,2,151935,7],"max_tokens":9,"stream":true,"stream_options":{"include_usage":true},"temperature":0.5}`},
		"media":   {`[{"type":"image_url"}]`, false, true, ""},
		"by text": {`"hi"`, true, false, `{"model":"m","prompt":[1,2,151935,7],"max_tokens":9,"stream":true,"stream_options":{"include_usage":true},"temperature":0.5}`},
	} {
		source := []byte(`{"model":"m","messages":[{"role":"user","content":` + c.content + `}],"temperature":0.5,"max_tokens":10,"stream":true}`)
		body, err := api.ParseBody(source)
		if err != nil {
			t.Fatal(err)
		}
		s, _ := New(Request{Dialect: api.Chat, Body: body, MaxOutput: 10, MaxField: "max_tokens"}, 100, c.byText)
		s.StartLeg(Engine{Name: "vllm", MayReportIDs: true}, body)
		s.recordAt([]byte(said))
		if s.NeedsText() == c.dropped {
			t.Errorf("%s: it needs the text: %v", name, s.NeedsText())
		}
		if c.dropped {
			s.DropText(body.WithoutText())
			s.DropText(api.Body{}) // once is enough
			clear(source)
		}
		rest, err := s.Continue()
		if got := string(rest.Body.Bytes()); (err == nil) != (c.body != "") || err == nil && got != c.body {
			t.Errorf("%s: %s, %v", name, got, err)
		}
		if bytes.Contains(rest.Body.Bytes(), []byte{0}) {
			t.Errorf("%s: it has bytes of what was dropped", name)
		}
	}
}
