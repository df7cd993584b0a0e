package jsonscan

import (
	"bytes"
	"errors"
)

// Cursor walks a text once, from its beginning to its end, as strictly as Check does, and shows what its
// user wants to see on the way. It allocates nothing. Once something is not well formed it stands still:
// Enter and More are false, Key and Value are nil, and End says what is wrong.
//
//	c := jsonscan.NewCursor(raw)
//	for more := c.Enter('{'); more; more = c.More('}') {
//		switch string(c.Key()) {
//		case "id":
//			id = c.Value()
//		default:
//			c.Value()
//		}
//	}
//	err := c.End()
type Cursor struct {
	scanner
	depth int // of the value that comes next
	err   error
}

// NewCursor stands before the value that a text is.
func NewCursor(raw []byte) Cursor { return Cursor{scanner: scanner{raw: raw}, depth: 1} }

var errNested = errors.New("the JSON is nested too deep")

// Enter goes into the value that comes next, an object or an array by its first bracket. It is false where
// the value is something else, which ends the walk, or empty.
func (c *Cursor) Enter(bracket byte) (entry bool) {
	if c.err != nil {
		return false
	}
	if c.depth > MaxDepth {
		c.err = errNested
		return false
	}
	if entry, c.err = c.open(bracket, bracket+('}'-'{'), "another value was expected"); entry {
		c.depth++
	}
	return entry
}

// EnterAt goes to the key of a member of the object that the text is, so many bytes behind its beginning: for who has walked
// a text to there that begins alike.
func (c *Cursor) EnterAt(offset int) { c.at, c.depth = offset, 2 }

// More goes on behind an entry, and leaves what Enter went into where it was the last one.
func (c *Cursor) More(closing byte) (entry bool) {
	if c.err != nil {
		return false
	}
	if entry, c.err = c.more(closing, "a comma or a closing bracket was expected"); !entry {
		c.depth--
	}
	return entry
}

// Key returns the key of a member as it is escaped, and goes to its value.
func (c *Cursor) Key() []byte {
	quoted := c.QuotedKey()
	if quoted == nil {
		return nil
	}
	return quoted[1 : len(quoted)-1]
}

// QuotedKey is Key between its quotes, as it stands in the text.
func (c *Cursor) QuotedKey() []byte {
	if c.err != nil {
		return nil
	}
	var begin, end int
	if begin, end, c.err = c.key(); c.err != nil {
		return nil
	}
	return c.raw[begin:end]
}

// Next is the first byte of the value that comes next, 0 where there is none.
func (c *Cursor) Next() byte {
	if c.err != nil {
		return 0
	}
	return c.next()
}

// Value returns the value that comes next, and goes behind it.
func (c *Cursor) Value() []byte {
	if c.err != nil {
		return nil
	}
	c.space()
	from := c.at
	if c.err = c.value(c.depth); c.err != nil {
		return nil
	}
	return c.raw[from:c.at:c.at]
}

// Numbers returns the array that comes next, and goes behind it, where isNumbers reports that what stands between its
// brackets is numbers that commas part, as JSON has them. Else it returns nil, and stays where it is: as with a
// list that is empty or has lists in it. A user who reads the numbers has them checked by the way.
func (c *Cursor) Numbers(isNumbers func(text []byte) bool) []byte {
	if c.err != nil || c.depth >= MaxDepth || c.next() != '[' {
		return nil
	}
	from, length := c.at, bytes.IndexByte(c.raw[c.at:], ']')
	if length < 0 || !isNumbers(c.raw[from+1:from+length]) {
		return nil
	}
	c.at = from + length + 1
	return c.raw[from:c.at:c.at]
}

// Rest is the text from the cursor on.
func (c *Cursor) Rest() []byte { return c.raw[c.at:] }

// Offset is how much of the text is behind the cursor, in bytes.
func (c *Cursor) Offset() int { return c.at }

// End says what is wrong with the text, unless the walk came to its end.
func (c *Cursor) End() error {
	if c.err == nil {
		c.err = c.end()
	}
	return c.err
}
