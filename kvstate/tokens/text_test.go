package tokens

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// printsOf are all prints of a text.
func printsOf(t *text) []uint32 {
	t.printAll()
	return t.prints
}

// randomText is text of so many bytes.
func randomText(rng *rand.Rand, n int) string {
	text := make([]byte, n)
	for i := range text {
		text[i] = "abcdefgh "[rng.IntN(9)]
	}
	return string(text)
}

// chatWith is a chat of messages with such contents, each a string or a list of a part.
func chatWith(t *testing.T, inParts bool, contents []string) Prompt {
	t.Helper()
	messages := []map[string]any{}
	for i, content := range contents {
		m := map[string]any{"role": []string{"user", "assistant"}[i%2], "content": any(content)}
		if inParts {
			m["content"] = []map[string]string{{"type": "text", "text": content}}
		}
		messages = append(messages, m)
	}
	body, err := json.Marshal(map[string]any{"model": "m", "messages": messages})
	if err != nil {
		t.Fatal(err)
	}
	return Prompt{API: Chat, Body: body}
}

// Texts share the cells before the first byte that differs, and none behind it: with strings and parts, whichever
// prints were made before, and wherever the byte stands.
func TestText_SharesTheCellsBeforeTheFirstByteThatDiffers(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 400 {
		contents := make([]string, 1+rng.IntN(3))
		for i := range contents {
			contents[i] = randomText(rng, rng.IntN(3*runBytes))
		}
		inParts, message := round%2 == 1, rng.IntN(len(contents))
		content := []byte(contents[message])
		at := rng.IntN(len(content) + 1)
		if at < len(content) {
			content[at] = '!'
		} else {
			content = append(content, "! more"...)
		}
		changed := slices.Clone(contents)
		changed[message] = string(content)
		one, other := chatWith(t, inParts, contents), chatWith(t, inParts, changed)
		a, ok1 := one.read()
		b, ok2 := other.read()
		if !ok1 || !ok2 {
			t.Fatal("not read")
		}
		begin, cell := int(a.turns[message].first), at/cellBytes // its header is one, too
		if inParts {
			cell = (at + len(`[{"text":"`)) / cellBytes
		}
		want := begin + 1 + cell
		of := fmt.Sprintf("round %d: byte %d of %d of message %d of %d", round, at, len(contents[message]), message, len(contents))
		if got := int(b.common(printsOf(a))); got != want {
			t.Fatalf("%s: %d cells are shared, want %d of %d", of, got, want, len(a.prints))
		}
		for i, print := range printsOf(b)[:min(len(a.prints), len(b.prints))] {
			if (print == a.prints[i]) != (i < want) {
				t.Fatalf("%s: of %d cells that are shared, cell %d", of, want, i)
			}
		}
		for i, c := range b.cuts[:min(len(a.cuts), len(b.cuts))] {
			if c.cell == a.cuts[i].cell && (c.hash == a.cuts[i].hash) != (int(c.cell) <= want) {
				t.Fatalf("%s: of %d cells that are shared, the cut behind cell %d", of, want, c.cell)
			}
		}
		if a.sum == b.sum {
			t.Fatalf("%s: the sums are equal", of)
		}
		a.free()
		b.free()
	}
}

// A text that is kept has all its prints, and nothing of the request.
func TestText_ACloneNeedsNoRequest(t *testing.T) {
	p := chatWith(t, false, []string{randomText(rand.New(rand.NewPCG(1, 2)), 5*runBytes)})
	made, _ := p.read()
	want := slices.Clone(printsOf(made))
	kept, _ := p.read()
	own := kept.clone()
	kept.free()
	clear(p.Body)
	if len(own.runs) != 0 || !slices.Equal(own.prints, want) {
		t.Errorf("%d runs and %d prints, want none and the %d that were made", len(own.runs), len(own.prints), len(want))
	}
}
