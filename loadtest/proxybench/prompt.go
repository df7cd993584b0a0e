package proxybench

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// model is the name under which the engines serve.
const model = "bench"

// documents is how many texts prompts begin with. A proxy that remembers prompts meets each many
// times, as it does with conversations.
const documents = 16

// A prompt is a chat request up to its mark, and from there.
type prompt struct{ before, after []byte }

// promptSet is a prompt for each document.
type promptSet [documents]prompt

// pace asks the engines for a time between the events of a stream. It travels as the temperature, in
// seconds: every proxy passes that on, and it keeps none from continuing a stream.
func (s *promptSet) pace(gap time.Duration) {
	if gap == 0 {
		return
	}
	for i := range s {
		rest := s[i].after[:len(s[i].after)-1]
		s[i].after = fmt.Appendf(nil, `%s,"temperature":%g}`, rest, gap.Seconds())
	}
}

// prompts are requests of some size in bytes, one for each document. answer is how many tokens are
// asked for.
func prompts(size, answer int, stream bool) *promptSet {
	var all promptSet
	for i := range all {
		rest := fmt.Sprintf(`"}],"max_tokens":%d,"stream":%t`, answer, stream)
		if stream {
			rest += `,"stream_options":{"include_usage":true}`
		}
		rest += "}"
		begin := `{"model":"` + model + `","messages":[{"role":"system","content":"`
		between := `"},{"role":"user","content":"Which of it matters to `
		text := passage(uint64(i), max(0, size-len(begin)-len(between)-markLen-len(rest)))
		all[i] = prompt{[]byte(begin + text + between), []byte(rest)}
	}
	return &all
}

// words are short, so that a token is some four bytes.
var words = strings.Fields("the a of in to and is it on that was for as with by at from this be are or an not have " +
	"had but which were all one they you her his can will more when there if out so what time up said them some")

// passage is a text of so many bytes that differs with the seed from its beginning.
func passage(seed uint64, size int) string {
	rng := rand.New(rand.NewPCG(seed, 1))
	var b strings.Builder
	b.Grow(size + 8)
	for b.Len() < size {
		b.WriteString(words[rng.IntN(len(words))])
		b.WriteByte(' ')
	}
	return b.String()[:size]
}
