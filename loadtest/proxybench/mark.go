package proxybench

import (
	"bytes"
	"encoding/hex"
)

// A mark names a request: it stands in the prompt, and in every event and answer to it, so that what
// belongs to another request is noticed on either side of the proxy.
type mark [markLen]byte

const (
	markPrefix = "bench-"
	markLen    = len(markPrefix) + 16
)

// markOf is the mark of a number.
func markOf(n uint64) (m mark) {
	copy(m[:], markPrefix)
	var raw [8]byte
	for i := range raw {
		raw[i] = byte(n >> (56 - 8*i))
	}
	hex.Encode(m[len(markPrefix):], raw[:])
	return m
}

// findMark finds the mark of a request in its body. It is behind the prompt's text, but proxies may
// write the members of a body in another order.
func findMark(body []byte) (m mark, found bool) {
	at := bytes.LastIndex(body, []byte(markPrefix))
	if at < 0 || len(body) < at+markLen {
		return m, false
	}
	copy(m[:], body[at:])
	return m, true
}
