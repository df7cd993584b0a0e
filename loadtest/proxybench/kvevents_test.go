package proxybench

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"
)

// published are the events of a batch: each its name, and of stored blocks how many, how many of tokens, and whether
// they begin a prompt.
func published(t *testing.T, c *kvCache) (events []string, tokens []int32) {
	t.Helper()
	payload := c.batch(time.Now())
	if payload == nil {
		return nil, nil
	}
	value, rest, err := msgp.ReadIntfBytes(payload)
	if err != nil || len(rest) > 0 {
		t.Fatalf("%v, %d bytes are left", err, len(rest))
	}
	for _, event := range value.([]any)[1].([]any) {
		fields := event.([]any)
		if fields[0] != "BlockStored" {
			events = append(events, fields[0].(string))
			continue
		}
		events = append(events, fmt.Sprintf("%s %d %d %t", fields[0], len(fields[1].([]any)), len(fields[3].([]any)), fields[2] == nil))
		for _, token := range fields[3].([]any) {
			tokens = append(tokens, int32(token.(int64)))
		}
	}
	return events, tokens
}

// An engine reports each block once, until all are cleared; its tokens are those of /tokenize.
func TestKVEvents_ReportWhatIsNew(t *testing.T) {
	body := func(question string) []byte {
		return fmt.Appendf(nil, `{"model":"bench","messages":[{"role":"system","content":"%s"},{"role":"user","content":"%s"}],"stream":true}`, passage(1, 4000), question)
	}
	first, second := tokensOf(body("What of it matters to bench-0123456789abcdef?"), nil), tokensOf(body("And what of it to bench-fedcba9876543210?"), nil)
	c := newKVCache()
	c.hold(first)
	events, tokens := published(t, c)
	whole := len(first) / blockTokens
	if want := fmt.Sprintf("BlockStored %d %d true", whole, whole*blockTokens); len(events) != 1 || events[0] != want {
		t.Fatalf("%q, want %q", events, want)
	}
	var asked struct{ Tokens []int32 }
	if err := json.Unmarshal([]byte(tokenized(body("What of it matters to bench-0123456789abcdef?"))), &asked); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(asked.Tokens, first) || !slices.Equal(tokens, first[:len(tokens)]) {
		t.Error("the tokens of a block are not those of /tokenize")
	}
	c.hold(first)
	if events, _ := published(t, c); len(events) > 0 {
		t.Errorf("blocks that are known: %q", events)
	}
	c.hold(second)
	if events, tokens := published(t, c); len(events) != 1 || len(tokens) == 0 || len(tokens) > 4*blockTokens || slices.Equal(tokens, first[:len(tokens)]) {
		t.Errorf("of a prompt that begins like another: %q", events)
	}
	c.clear()
	c.hold(first)
	want := []string{"AllBlocksCleared", fmt.Sprintf("BlockStored %d %d true", whole, whole*blockTokens)}
	if events, _ := published(t, c); !slices.Equal(events, want) {
		t.Errorf("%q, want %q", events, want)
	}
}
