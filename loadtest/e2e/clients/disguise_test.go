package clients

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strings"
	"unicode"
)

// disguise returns a request's body with the shape that it has and none of its text: each word
// in its strings is another one of as many letters, the same for the same one, so that what two
// bodies share they share afterwards. What APIs and JSON schemas prescribe is kept, white space
// too, and tools of different names have different names.
func disguise(body []byte) ([]byte, error) {
	d := disguiser{Decoder: json.NewDecoder(bytes.NewReader(body)), body: body, names: make(map[string]string)}
	if err := d.value(""); err != nil {
		return nil, err
	}
	return append(d.out.Bytes(), body[d.at:]...), nil
}

// disguiser copies one body.
type disguiser struct {
	*json.Decoder
	body  []byte
	at    int64 // what is before it was read
	out   bytes.Buffer
	names map[string]string // of tools, by what they became
}

// prescribed are the keys whose strings an API or JSON schema prescribes.
var prescribed = map[string]bool{"model": true, "role": true, "type": true, "tool_choice": true, "$schema": true}

// value copies a value that stands under a key. Names are the agent's own in the object of a
// schema's properties, and in a tool's input.
func (d *disguiser) value(key string) error {
	return d.copy(func(text string) (string, error) {
		switch {
		case key == "name":
			return d.name(text), nil
		case prescribed[key]:
			return text, nil
		}
		return disguiseText(text), nil
	}, func(bracket json.Delim) error {
		if bracket == '{' {
			return d.object(key == "properties" || key == "input")
		}
		if key == "input" { // items, of which none is a tool's input
			key = ""
		}
		for d.More() {
			if err := d.value(key); err != nil {
				return err
			}
		}
		return d.copy(nil, nil)
	})
}

// copy copies the next token and what is before it, a string as it becomes, and goes on within
// the brackets that it opens.
func (d *disguiser) copy(becomes func(string) (string, error), within func(json.Delim) error) error {
	token, err := d.Token()
	if err != nil {
		return err
	}
	raw := d.body[d.at:d.InputOffset()]
	d.at = d.InputOffset()
	switch token := token.(type) {
	case string:
		text, err := becomes(token)
		if err != nil {
			return err
		}
		d.out.Write(raw[:bytes.IndexByte(raw, '"')])
		return d.write(text)
	case json.Delim:
		d.out.Write(raw)
		if token == '{' || token == '[' {
			return within(token)
		}
		return nil
	}
	d.out.Write(raw)
	return nil
}

// name is what a tool's name becomes, which no other one of the body does.
func (d *disguiser) name(name string) string {
	for text := name; ; text += "x" {
		made := disguiseText(text)
		if of, taken := d.names[made]; !taken || of == name {
			d.names[made] = name
			return made
		}
	}
}

func (d *disguiser) object(own bool) error {
	seen := make(map[string]bool)
	for d.More() {
		key := ""
		err := d.copy(func(text string) (string, error) {
			name := text
			if key = text; own {
				name, key = disguiseText(text), "" // its own, whatever API has the same
			}
			if seen[name] {
				return "", fmt.Errorf("%q and another key became the same, %q", text, name)
			}
			seen[name] = true
			return name, nil
		}, nil)
		if err != nil {
			return err
		}
		if err := d.value(key); err != nil {
			return err
		}
	}
	return d.copy(nil, nil)
}

// write writes a string as agents' runtimes do, without escapes of HTML.
func (d *disguiser) write(text string) error {
	e := json.NewEncoder(&d.out)
	e.SetEscapeHTML(false)
	if err := e.Encode(text); err != nil {
		return err
	}
	d.out.Truncate(d.out.Len() - 1) // its line end
	return nil
}

// disguiseText replaces the words and numbers of a text; signs and white space stay.
func disguiseText(text string) string {
	var out strings.Builder
	for i := 0; i < len(text); {
		end := i
		for end < len(text) && isLetter(text[end]) {
			end++
		}
		if end > i {
			out.WriteString(wordFor(text[i:end]))
			i = end
			continue
		}
		for end < len(text) && text[end] >= '0' && text[end] <= '9' {
			end++
		}
		if end > i+2 { // a count, a quantifier of a pattern says nothing
			out.WriteString(numberFor(text[i:end]))
			i = end
			continue
		}
		out.WriteByte(text[i])
		i++
	}
	return strings.Map(func(r rune) rune { // letters beyond ASCII
		if r > unicode.MaxASCII && unicode.IsLetter(r) {
			return 'é'
		}
		return r
	}, out.String())
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// wordsOf are words by their letters, of which longer ones are made.
var wordsOf = [...][]string{
	1: {"a", "x", "y", "n"},
	2: {"by", "up", "on", "in", "at", "we", "so", "no"},
	3: {"air", "box", "car", "day", "egg", "far", "hat", "map", "old", "row", "sea", "top"},
	4: {"bank", "coat", "door", "fish", "gold", "hill", "lamp", "moon", "nest", "path", "rain", "ship", "tree", "wind"},
	5: {"apple", "bread", "chair", "field", "glass", "horse", "light", "mouse", "night", "paper", "river", "stone", "table", "water"},
	6: {"animal", "bridge", "circle", "dinner", "family", "garden", "island", "letter", "market", "number", "planet", "silver", "winter"},
	7: {"account", "balance", "cabinet", "diamond", "evening", "fashion", "harbour", "kitchen", "library", "morning", "picture", "weather"},
}

// wordFor is a word of as many letters, capitals where the first one has them.
func wordFor(word string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(strings.ToLower(word)))
	sum := h.Sum64()
	var made strings.Builder
	for left := len(word); left > 0; sum = sum*6364136223846793005 + 1442695040888963407 {
		n := min(left, len(wordsOf)-1)
		if rest := left - n; rest > 0 && rest < 3 { // no short one at the end
			n -= 3 - rest
		}
		choice := wordsOf[n]
		made.WriteString(choice[sum>>33%uint64(len(choice))])
		left -= n
	}
	text := made.String()
	switch {
	case len(word) > 1 && strings.ToUpper(word) == word:
		return strings.ToUpper(text)
	case word[0] < 'a':
		return strings.ToUpper(text[:1]) + text[1:]
	}
	return text
}

// numberFor is a number of as many digits.
func numberFor(digits string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(digits))
	made := []byte(digits)
	for i, sum := 0, h.Sum64(); i < len(made); i, sum = i+1, sum*6364136223846793005+1442695040888963407 {
		made[i] = '1' + byte(sum>>33%9)
	}
	return string(made)
}
