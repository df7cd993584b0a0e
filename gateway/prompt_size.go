package gateway

import (
	"bytes"

	"github.com/cespare/xxhash/v2"

	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/predict"
)

// sizeOf is what the length of a prompt is predicted by, see predict.Prompts: a rough count,
// and which tools and system prompt it shares with others.
func sizeOf(req *pd.Request, prompt api.Value) predict.Prompt {
	size := predict.Prompt{Model: req.Model, API: req.Dialect.Name, Rough: turnTokens(prompt, 0)}
	context := xxhash.New()
	for _, field := range []string{"tools", "system", "instructions"} {
		value := req.Body.Get(field)
		if value.Null() {
			continue
		}
		if field == "tools" {
			size.Rough += roughTokens(value)
		} else {
			size.Rough += turnTokens(value, 0)
		}
		if field != "system" || !value.IsArray() {
			_, _ = context.Write(value)
			continue
		}
		for block := range value.Elements() {
			if !bytes.Contains(block, attribution) {
				_, _ = context.Write(block)
			}
		}
	}
	if req.Dialect == api.Chat {
		for first := range prompt.Elements() {
			if message, ok := first.Object(); ok {
				if role, _ := message.Get("role").String(); role == "system" {
					_, _ = context.Write(message.Get("content"))
				}
			}
			break
		}
	}
	size.Context = context.Sum64()
	return size
}

// attribution is in a block of some agents' system prompts that differs in each request.
var attribution = []byte(`"x-anthropic-billing-header`)

// Text has a space, a quote or an escape in so many bytes; what has none is an image or the
// like, whose tokens do not grow with its bytes.
const longestWord = 2048

// textKind is what roughTokens takes a byte of a JSON value for.
type textKind uint8

const (
	blank textKind = iota // and control characters
	letter
	sign // a quote, too
	digit
	escape // a backslash
	first  // byte of a character beyond ASCII
	further
)

var textKinds = func() (k [256]textKind) {
	for c := range k {
		switch {
		case c >= 0xC0:
			k[c] = first
		case c >= 0x80:
			k[c] = further
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_':
			k[c] = letter
		case c >= '0' && c <= '9':
			k[c] = digit
		case c == '\\':
			k[c] = escape
		case c > ' ':
			k[c] = sign
		}
	}
	return k
}()

// roughTokens is about how many tokens the text in a JSON value has, by what tokenizers
// commonly make one token of: a word with the space before it, up to six letters of a longer
// one, a digit, two signs, a line end, half of a character beyond ASCII. It needs not be right,
// only wrong by the same share for texts of different kinds.
func roughTokens(value []byte) (n int) {
	const perWord = 6
	word := 0 // where it began
	for i := 0; i < len(value); {
		k, from := textKinds[value[i]], i
		quoted := value[i] == '"'
		for i++; (k == letter || k == sign) && i < len(value) && textKinds[value[i]] == k; i++ {
			quoted = quoted || value[i] == '"'
		}
		if long := word + longestWord; from >= long && !quoted && (k == letter || k == sign || k == digit) {
			continue
		} else if run := min(i, long) - from; k == letter {
			n += (run + perWord - 1) / perWord
		} else if k == sign {
			n += (max(run, 1) + 1) / 2
		}
		switch k {
		case digit, first:
			n++
		case escape: // what is escaped is one sign
			n++
			if i < len(value) && value[i] == 'u' {
				i += 4
			}
			i++
		}
		if quoted || k != letter && k != sign && k != digit {
			word = i
		}
	}
	return n
}

const (
	perTurn   = 4   // tokens that templates write around a message, or a part of one
	perMedium = 300 // of an image or the like
	// deepestTurn bounds how often a byte is looked at: messages, parts and the results of
	// tools in them are no deeper.
	deepestTurn = 8
)

// turnTokens is about how many tokens messages have: of them only what templates write.
func turnTokens(value api.Value, depth int) (n int) {
	if depth > deepestTurn {
		return roughTokens(value)
	}
	if object, ok := value.Object(); ok {
		n = perTurn
		for _, key := range object.Keys() {
			switch key {
			case "content", "text", "thinking", "reasoning", "summary", "output", "tool_calls", "function":
				n += turnTokens(object.Get(key), depth+1)
			case "name", "arguments", "input":
				n += roughTokens(object.Get(key))
			case "source", "image_url", "input_audio", "audio_url", "video_url", "file":
				n += perMedium
			}
		}
		return n
	}
	if value.IsArray() {
		for e := range value.Elements() {
			n += turnTokens(e, depth+1)
		}
		return n
	}
	if len(value) > 1 && value[0] == '"' {
		value = value[1 : len(value)-1]
	}
	return roughTokens(value)
}

// predictPrompt is how many tokens the prompt will have, as far as prompts like it have shown.
func (x *exchange) predictPrompt(req *pd.Request) {
	if n := x.server.pd.Binder.Prompts.Expect(req.Size); n > 0 {
		req.PromptTokens = n
	}
}
