package api

import (
	"math/rand/v2"
	"strings"
	"testing"
)

const passingChat = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n" +
	`data: {"choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":null}]}` + "\r\n\r\n" +
	": a comment\n\n" +
	`data: {"choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":"stop"}]}` + "\n\n"

const passingUsage = `data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":4}}}` + "\n\n"

// passed gives an answer to a PassingAnswer in pieces of at most so many bytes, and returns what
// the client gets.
func passed(a *PassingAnswer, text string, most int, r *rand.Rand) string {
	var got strings.Builder
	for len(text) > 0 {
		n := min(len(text), 1+r.IntN(most))
		out, _ := a.Add([]byte(text[:n]))
		got.Write(out)
		text = text[n:]
	}
	got.Write(a.End())
	return got.String()
}

// Wherever the network cuts an answer, the same events are found in it and the client gets the
// same bytes: all of them, or all but the usage that it has not asked for.
func TestPassingAnswer_CutAnywhere(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	whole := passingChat + passingUsage + "data: [DONE]\n\n"
	for _, most := range []int{1, 7, 40, 200, 10_000} {
		for _, hide := range []bool{false, true} {
			a := NewPassingAnswer(Chat, true, 1)
			a.HideUsage = hide
			want := whole
			if hide {
				want = passingChat + "data: [DONE]\n\n"
			}
			if got := passed(a, whole, most, r); got != want {
				t.Errorf("pieces of %d, hide %v: the client gets %q", most, hide, got)
			}
			if a.Content != 2 || !a.Complete || a.Failure != "" {
				t.Errorf("pieces of %d: %d content events, complete %v, failure %q", most, a.Content, a.Complete, a.Failure)
			}
			if want := (Usage{Count{7, true}, Count{3, true}, Count{4, true}}); a.Usage != want {
				t.Errorf("pieces of %d: usage %+v", most, a.Usage)
			}
		}
	}
}

// How an answer ended is what its bytes say: an end marker, all choices ended without one, an
// engine's error, or nothing.
func TestPassingAnswer_Ends(t *testing.T) {
	for name, c := range map[string]struct {
		stream   bool
		answers  int
		text     string
		complete bool
		failure  string
	}{
		"an end marker":               {true, 1, passingChat + "data: [DONE]\n\n", true, ""},
		"all choices ended":           {true, 1, passingChat, true, ""},
		"one of two choices ended":    {true, 2, passingChat, false, ""},
		"cut between events":          {true, 1, passingChat[:len(passingChat)/2], false, ""},
		"cut within the last event":   {true, 1, passingChat + "data: {", false, ""},
		"an error event":              {true, 1, `data: {"error":{"message":"no memory","code":500}}` + "\n\n", false, "no memory"},
		"a whole body":                {false, 1, `{"choices":[{"message":{"content":"a"}}],"usage":{"prompt_tokens":7,"completion_tokens":3}}`, true, ""},
		"a whole body that was cut":   {false, 1, `{"choices":[{"message":`, false, ""},
		"a whole body that is not it": {false, 1, `not JSON`, false, ""},
	} {
		a := NewPassingAnswer(Chat, c.stream, c.answers)
		if got := passed(a, c.text, 30, rand.New(rand.NewPCG(3, 4))); got != c.text {
			t.Errorf("%s: the client gets %q", name, got)
		}
		if a.Complete != c.complete || a.Failure != c.failure {
			t.Errorf("%s: complete %v, failure %q", name, a.Complete, a.Failure)
		}
	}
}

// An event beyond all bounds passes on and is followed no more: it takes no memory, and the client
// gets every byte of it.
func TestPassingAnswer_AnEventTooLong(t *testing.T) {
	for _, hide := range []bool{false, true} {
		a := NewPassingAnswer(Chat, true, 1)
		a.HideUsage = hide
		piece, got := []byte(strings.Repeat("x", 1<<20)), 0
		for range 20 {
			out, _ := a.Add(piece)
			got += len(out)
			if len(a.held) > MaxEvent {
				t.Fatalf("%d bytes are held", len(a.held))
			}
		}
		if got += len(a.End()); got != 20<<20 {
			t.Errorf("hide %v: the client gets %d bytes", hide, got)
		}
	}
}

func FuzzPassingAnswer(f *testing.F) {
	f.Add(passingChat+passingUsage+"data: [DONE]\n\n", uint64(1), true)
	f.Add("data: {\n\ndata: a\ndata: b\r\n\r\n\n\n", uint64(2), false)
	f.Fuzz(func(t *testing.T, text string, seed uint64, stream bool) {
		r := rand.New(rand.NewPCG(seed, 1))
		a, b := NewPassingAnswer(Chat, stream, 1), NewPassingAnswer(Chat, stream, 1)
		if got := passed(a, text, 1+r.IntN(64), r); got != text {
			t.Fatalf("the client gets %q of %q", got, text)
		}
		passed(b, text, len(text)+1, rand.New(rand.NewPCG(0, 0)))
		if a.Usage != b.Usage || a.Content != b.Content || a.Complete != b.Complete || a.Failure != b.Failure {
			t.Fatalf("in pieces %+v, at once %+v", a, b)
		}
	})
}

// A piece of an answer costs at most 5 us: one event of a stream (docs/gateway-api.md).
func BenchmarkPassingAnswer(b *testing.B) {
	event := []byte(`data: {"id":"chatcmpl-0123456789","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n")
	a := NewPassingAnswer(Chat, true, 1)
	a.HideUsage = true
	b.ReportAllocs()
	for b.Loop() {
		if _, n := a.Add(event); n != 1 {
			b.Fatal("no content")
		}
	}
}

// A count of more than the answer can have is left out, of streams and of whole answers; others count.
func TestPassingAnswer_UsageIsBounded(t *testing.T) {
	const usage = `"usage":{"prompt_tokens":2000000000,"completion_tokens":3}`
	for stream, text := range map[bool]string{
		true:  `data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}` + "\n\n" + `data: {"choices":[],` + usage + "}\n\ndata: [DONE]\n\n",
		false: `{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}],` + usage + `}`,
	} {
		a := NewPassingAnswer(Chat, stream, 1)
		a.MostTokens = 1000
		a.Add([]byte(text))
		a.End()
		if a.Usage.Prompt.Known || a.Usage.Output.Tokens != 3 {
			t.Errorf("streamed %v: %+v", stream, a.Usage)
		}
	}
}
