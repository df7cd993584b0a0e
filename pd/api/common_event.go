package api

import (
	"bytes"

	"github.com/tandem-gateway/tandem/kvstate/jsonscan"
)

// An event of a stream is mostly one token, and of a shape that engines send a hundred times a second for
// each stream. commonChunk and commonType read such events in one strict pass, without an allocation. They
// are false for whatever is not that shape: an error, an escaped key, a key that stands twice, a type that
// is not the usual one. Then the long way says what the event means, and words what is wrong with it.

// commonChunk is what an event of chat or completions means.
func commonChunk(data []byte, chat bool) (g Meaning, ok bool) {
	c := jsonscan.NewCursor(data)
	chosen, common := false, true
	for more := c.Enter('{'); more && common; more = c.More('}') {
		switch key := c.Key(); string(key) {
		case "choices":
			common, chosen = !chosen && commonChoices(&c, chat, &g), true
		case "object":
			kind, plain := plainString(c.Value())
			common = plain && string(kind) != "error"
		case "error":
			common = false
		default:
			c.Value()
			common = bytes.IndexByte(key, '\\') < 0
		}
	}
	return g, common && c.End() == nil
}

// commonChoices reads the choices of an event.
func commonChoices(c *jsonscan.Cursor, chat bool, g *Meaning) (common bool) {
	common = c.Next() == '['
	for more := common && c.Enter('['); more && common; more = c.More(']') {
		var choice commonChoice
		if common = choice.read(c); !common {
			break
		}
		if choice.finished {
			g.Finished = append(g.Finished, choice.index)
		}
		g.Content = g.Content || !chat || choice.finished || !choice.delta.isBare()
	}
	return common
}

// commonChoice is what a choice of an event says.
type commonChoice struct {
	seen     members
	index    int
	finished bool
	delta    commonDelta
}

func (h *commonChoice) read(c *jsonscan.Cursor) (common bool) {
	common = c.Next() == '{'
	for more := common && c.Enter('{'); more && common; more = c.More('}') {
		switch key := c.Key(); string(key) {
		case "index":
			h.index, common = smallNumber(c.Value())
			common = common && h.seen.once(memberIndex)
		case "finish_reason":
			reason, plain := plainString(c.Value())
			h.finished = len(reason) > 0
			common = plain && string(reason) != "error" && string(reason) != "abort" && h.seen.once(memberFinish)
		case "delta":
			common = h.seen.once(memberDelta) && h.delta.read(c)
		default:
			c.Value()
			common = bytes.IndexByte(key, '\\') < 0
		}
	}
	return common
}

// commonDelta is what the delta of a choice of a chat says.
type commonDelta struct {
	seen    members
	role    bool
	content bool // text, reasoning or a tool call
}

// isBare reports whether it only names the role, as the chunk does with which engines open.
func (d *commonDelta) isBare() bool { return d.role && !d.content }

func (d *commonDelta) read(c *jsonscan.Cursor) (common bool) {
	common = c.Next() == '{'
	for more := common && c.Enter('{'); more && common; more = c.More('}') {
		switch key := c.Key(); string(key) {
		case "role":
			c.Value()
			d.role = true
		case "content":
			common = d.readText(c) && d.seen.once(memberContent)
		case "reasoning_content":
			common = d.readText(c) && d.seen.once(memberReasoningContent)
		case "reasoning":
			common = d.readText(c) && d.seen.once(memberReasoning)
		case "tool_calls":
			c.Value()
			d.content = true
		default:
			c.Value()
			common = bytes.IndexByte(key, '\\') < 0
		}
	}
	return common
}

// readText reads a string, of which it matters only whether there is something in it, or null.
func (d *commonDelta) readText(c *jsonscan.Cursor) (common bool) {
	value := c.Value()
	d.content = d.content || len(value) > 2 && value[0] == '"'
	return isNull(value) || len(value) > 0 && value[0] == '"'
}

// commonType is the type of an event of responses or messages, which is in the last of its members at
// the latest. What comes behind it is not looked at.
func commonType(data []byte) (kind []byte, ok bool) {
	c := jsonscan.NewCursor(data)
	for more := c.Enter('{'); more; more = c.More('}') {
		key := c.Key()
		if string(key) == "type" {
			kind, ok = plainString(c.Value())
			return kind, ok && len(kind) > 0
		}
		c.Value()
		if bytes.IndexByte(key, '\\') >= 0 {
			return nil, false
		}
	}
	return nil, false
}

// members are members of an object of which only the first counts.
type members uint8

const (
	memberIndex members = 1 << iota
	memberFinish
	memberDelta
	memberContent
	memberReasoningContent
	memberReasoning
)

// once reports whether a member has not stood there before.
func (m *members) once(member members) bool {
	first := *m&member == 0
	*m |= member
	return first
}

// plainString is what stands in a string without escapes, nothing where a value is null.
func plainString(value []byte) (text []byte, ok bool) {
	if isNull(value) {
		return nil, true
	}
	if len(value) < 2 || value[0] != '"' || bytes.IndexByte(value, '\\') >= 0 {
		return nil, false
	}
	return value[1 : len(value)-1], true
}

func isNull(value []byte) bool { return len(value) > 0 && value[0] == 'n' }

// smallNumber is a number of up to nine digits.
func smallNumber(value []byte) (n int, ok bool) {
	for _, c := range value {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, len(value) > 0 && len(value) < 10
}
