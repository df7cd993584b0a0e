package gateway

import (
	"bytes"
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/predict"
)

// sizeOf is what the length of a prompt is predicted by, see predict.Prompts: a rough count,
// and which tools and system prompt it shares with others. onlyText: it is a chat whose
// messages each say a string.
func sizeOf(req *pd.Request, prompt api.Value) (size predict.Prompt, onlyText bool) {
	size = predict.Prompt{Model: req.Model, API: req.Dialect.Name}
	context := xxhash.New()
	var system api.Value // what the first message says, if it is the system's
	size.Rough, system, onlyText = promptTokens(prompt, req.Body.Long())
	for _, field := range []string{"tools", "system", "instructions"} {
		value := req.Body.Get(field)
		if value.Null() {
			continue
		}
		if field == "tools" {
			size.Rough += roughTokens(value)
		} else {
			c := value.CursorOf(req.Body.Long())
			size.Rough += turnTokens(&c, 0)
		}
		if field != "system" || !value.IsArray() {
			writeContext(context, value)
			continue
		}
		for block := range value.Elements() {
			if !bytes.Contains(block, attribution) {
				writeContext(context, block)
			}
		}
	}
	if req.Dialect == api.Chat {
		writeContext(context, system)
	}
	size.Context = context.Sum64()
	return size, onlyText && req.Dialect == api.Chat
}

// knownBy is by how much of its beginning a text is known from others of its length, in bytes: one that is longer is a
// document, and has as many tokens as another that begins like it.
const knownBy = 16 << 10

// writeContext adds a text to the hash of what a prompt shares with others.
func writeContext(context *xxhash.Digest, text api.Value) {
	if len(text) > knownBy {
		_, _ = context.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(text))))
		text = text[:knownBy]
	}
	_, _ = context.Write(text)
}

// promptTokens is turnTokens of a prompt, what its first message says where that is the system's, and whether all
// of them are objects that say a string.
func promptTokens(prompt api.Value, long api.Long) (n int, system api.Value, onlyText bool) {
	c := prompt.CursorOf(long)
	if !prompt.IsArray() {
		return turnTokens(&c, 0), nil, false
	}
	first := true
	onlyText = true
	for more := c.Enter('['); more; more = c.More(']') {
		if c.Next() != '{' {
			n, onlyText, first = n+turnTokens(&c, 1), false, false
			continue
		}
		tokens, said, isSystem := messageTokens(&c, 1)
		if first && isSystem {
			system = said
		}
		n, onlyText, first = n+tokens, onlyText && !said.IsArray(), false
	}
	return n, system, onlyText
}

// attribution is in a block of some agents' system prompts that differs in each request.
var attribution = []byte(`"x-anthropic-billing-header`)

const (
	perTurn   = 4   // tokens that templates write around a message, or a part of one
	perMedium = 300 // of an image or the like
	// deepestTurn bounds how often a byte is looked at: messages, parts and the results of
	// tools in them are no deeper.
	deepestTurn = 6
)

// turnTokens is about how many tokens the messages have that come next: of them only what templates write.
func turnTokens(c *api.Cursor, depth int) (n int) {
	switch next := c.Next(); {
	case depth > deepestTurn:
		return roughTokens(c.Value())
	case next == '{':
		n, _, _ = messageTokens(c, depth)
	case next == '[':
		for more := c.Enter('['); more; more = c.More(']') {
			n += turnTokens(c, depth+1)
		}
	case next == '"':
		value := c.Value()
		n = roughTokens(value[1 : len(value)-1])
	default:
		n = roughTokens(c.Value())
	}
	return n
}

// messageTokens is turnTokens of a message, or of a part of one, what it says, and whether that is the system's. It is
// walked once for all of it: a prompt may be one of megabytes.
func messageTokens(c *api.Cursor, depth int) (n int, content api.Value, isSystem bool) {
	n = perTurn
	for more := c.Enter('{'); more; more = c.More('}') {
		switch c.Key() {
		case "role":
			isSystem = string(c.Value()) == `"system"`
		case "content":
			c.Next()
			rest := c.Rest()
			n += turnTokens(c, depth+1)
			if !content.IsArray() { // of two, the one that may be more than text
				content = api.Value(rest[:len(rest)-len(c.Rest())])
			}
		case "text", "thinking", "reasoning", "reasoning_content", "summary", "output", "tool_calls", "function":
			n += turnTokens(c, depth+1)
		case "name", "arguments", "input":
			n += roughTokens(c.Value())
		case "source", "image_url", "input_audio", "audio_url", "video_url", "file":
			n += perMedium
			c.Value()
		default:
			c.Value()
		}
	}
	return n, content, isSystem
}

// predictPrompt is how many tokens the prompt will have, as far as prompts like it have shown.
func (x *exchange) predictPrompt(req *pd.Request) {
	if n := x.server.pd.Binder.Prompts.Expect(req.Size); n > 0 {
		req.PromptTokens = n
	}
}
