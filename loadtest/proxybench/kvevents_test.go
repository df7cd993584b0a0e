package proxybench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
	"github.com/tinylib/msgp/msgp"

	"github.com/tandem-gateway/tandem/loadtest/process"
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
	made := newTokenizer()
	first, second := made.tokensOf(body("What of it matters to bench-0123456789abcdef?")), made.tokensOf(body("And what of it to bench-fedcba9876543210?"))
	c := newKVCache()
	c.hold(first)
	events, tokens := published(t, c)
	whole := len(first.tokens) / blockTokens
	if want := fmt.Sprintf("BlockStored %d %d true", whole, whole*blockTokens); len(events) != 1 || events[0] != want {
		t.Fatalf("%q, want %q", events, want)
	}
	var asked struct{ Tokens []int32 }
	if err := json.Unmarshal([]byte(made.tokenized(body("What of it matters to bench-0123456789abcdef?"))), &asked); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(asked.Tokens, first.tokens) || !slices.Equal(tokens, first.tokens[:len(tokens)]) {
		t.Error("the tokens of a block are not those of /tokenize")
	}
	c.hold(first)
	if events, _ := published(t, c); len(events) > 0 {
		t.Errorf("blocks that are known: %q", events)
	}
	c.hold(second)
	if events, tokens := published(t, c); len(events) != 1 || len(tokens) == 0 || len(tokens) > 4*blockTokens || slices.Equal(tokens, first.tokens[:len(tokens)]) {
		t.Errorf("of a prompt that begins like another: %q", events)
	}
	c.clear()
	c.hold(first)
	want := []string{"AllBlocksCleared", fmt.Sprintf("BlockStored %d %d true", whole, whole*blockTokens)}
	if events, _ := published(t, c); !slices.Equal(events, want) {
		t.Errorf("%q, want %q", events, want)
	}
}

// Who begins to receive later than an engine works receives all that it holds from then on: no event builds on what was
// published before.
func TestKVEvents_BeginAnewWithWhoReceivesThem(t *testing.T) {
	free, err := process.FreeAddresses(1)
	if err != nil {
		t.Fatal(err)
	}
	address := "tcp://" + free[0]
	c := newKVCache()
	prompt := newTokenizer().tokensOf([]byte(`{"messages":[{"role":"user","content":"` + passage(1, 4000) + `"}]}`))
	c.hold(prompt)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.publish(ctx, address) }()
	socket, err := zmq.NewSocket(zmq.SUB)
	if err == nil {
		err = errors.Join(socket.SetLinger(0), socket.SetRcvtimeo(10*time.Second), socket.SetSubscribe(""), socket.Connect(address))
	}
	if err != nil {
		t.Fatal(err)
	}
	message, err := socket.RecvMessageBytes(0)
	if err != nil {
		t.Fatal(err)
	}
	cleared := bytes.Contains(message[2], []byte("AllBlocksCleared"))
	c.hold(prompt)
	if message, err = socket.RecvMessageBytes(0); err != nil || !cleared || !bytes.Contains(message[2], []byte("BlockStored")) {
		t.Errorf("the first message clears all: %v; the second: %q, %v", cleared, message, err)
	}
	stop()
	if err := errors.Join(<-ended, socket.Close()); err != nil {
		t.Error(err)
	}
}

// What is made of a chat that begins like one before is what would be made of it alone.
func TestTokenizer_KnowsHowChatsBegin(t *testing.T) {
	chat := func(text string) []byte { return []byte(`{"messages":[{"role":"user","content":"` + text + `"}]}`) }
	long, other := passage(1, 9000), passage(2, 9000)
	used := newTokenizer()
	for _, text := range []string{long, long, long + other, long[:5000] + other, long[:300], long[:100], "", other, long + "x"} {
		got, want := used.tokensOf(chat(text)), newTokenizer().tokensOf(chat(text))
		if !slices.Equal(got.tokens, want.tokens) || !slices.Equal(got.names, want.names) || len(got.names) != len(got.tokens)/blockTokens {
			t.Errorf("%d bytes: other tokens or names", len(text))
		}
		var ids []int32
		if err := json.Unmarshal(append(got.appendIDs([]byte("[")), ']'), &ids); err != nil || !slices.Equal(ids, got.tokens) {
			t.Errorf("%d bytes: the ids are written as others, %v", len(text), err)
		}
	}
}
