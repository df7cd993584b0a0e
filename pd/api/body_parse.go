package api

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"unicode/utf8"

	"github.com/tandem-gateway/tandem/kvstate/jsonscan"
)

// maxFields is how many fields one object may have where we look them up.
const maxFields = 1024

// ErrNotObject is returned for JSON that is valid but no object.
var ErrNotObject = errors.New("the body must be a JSON object")

// ParseBody checks that raw is one well-formed JSON object in UTF-8, nested at
// most 256 deep and without a key that appears twice: parsers disagree on which
// of the two counts. It keeps raw.
func ParseBody(raw []byte) (Body, error) {
	sum, plain := jsonscan.Sum(raw)
	if !plain && !isUTF8(raw) {
		return Body{}, errNotUTF8
	}
	b, err := parseObject(raw, plain, nil)
	b.sum = sum
	return b, err
}

// parseAround is ParseBody of a text of which a list of numbers, raw[from:end], has been read; end 0: none has.
func parseAround(raw []byte, from, end int) (Body, error) {
	if end == 0 {
		return ParseBody(raw)
	}
	_, before := jsonscan.Sum(raw[:from])
	_, behind := jsonscan.Sum(raw[end:])
	plain := before && behind
	if !plain && !isUTF8(raw) {
		return Body{}, errNotUTF8
	}
	var list Long
	list.Note(raw[from:end])
	b, err := parseObject(raw, plain, list)
	b.long = append(b.long, list...)
	return b, err
}

var errNotUTF8 = errors.New("the body is not valid UTF-8")

// isUTF8 is utf8.Valid, which reads a text byte by byte behind its first character beyond ASCII: most prompts
// have a few.
func isUTF8(text []byte) bool {
	for {
		text = text[asciiLength(text):]
		if len(text) == 0 {
			return true
		}
		for len(text) > 0 && text[0] >= utf8.RuneSelf {
			r, size := utf8.DecodeRune(text)
			if r == utf8.RuneError && size == 1 {
				return false
			}
			text = text[size:]
		}
	}
}

// asciiLength is how many bytes of ASCII a text begins with.
func asciiLength(text []byte) int {
	const highBits = 0x8080808080808080
	at := 0
	for ; at+32 <= len(text); at += 32 {
		t := text[at : at+32]
		w := binary.LittleEndian.Uint64(t) | binary.LittleEndian.Uint64(t[8:]) | binary.LittleEndian.Uint64(t[16:]) | binary.LittleEndian.Uint64(t[24:])
		if w&highBits != 0 {
			break
		}
	}
	for at+8 <= len(text) {
		high := binary.LittleEndian.Uint64(text[at:]) & highBits
		if high != 0 {
			return at + bits.TrailingZeros64(high)/8
		}
		at += 8
	}
	for at < len(text) && text[at] < utf8.RuneSelf {
		at++
	}
	return at
}

// parseObject is ParseBody of what is known to be UTF-8, and plain or not, and of which long values may be known.
func parseObject(raw []byte, plain bool, known Long) (Body, error) {
	first := jsonscan.SkipSpace(raw, 0)
	if first >= len(raw) {
		return Body{}, errors.New("the body is empty")
	}
	if raw[first] != '{' {
		if err := jsonscan.Check(raw); err != nil {
			return Body{}, err
		}
		return Body{}, ErrNotObject
	}
	var long *Long // short bodies need no memory for it
	if len(raw) >= longBody {
		long = new(Long)
	}
	var room [usualFields]field
	fields, keys := room[:0], lengths(0)
	for m, err := range jsonscan.CheckKnownMembers(raw, plain, known, long) {
		if err != nil {
			return Body{}, err
		}
		if len(fields) == maxFields {
			return Body{}, fmt.Errorf("the object has more than %d fields", maxFields)
		}
		key, ok := keyOf(m.Text[:len(m.Key)+len(`""`)])
		if !ok {
			return Body{}, errors.New("malformed JSON: a key is not a valid string")
		}
		keys |= lengthOf(key)
		fields = append(fields, field{key: key, member: m.Text, value: int32(len(m.Text) - len(m.Value))})
	}
	if err := unique(fields); err != nil {
		return Body{}, err
	}
	b := Body{source: raw, fields: slices.Clone(fields), keys: keys}
	if long != nil {
		b.long = *long
	}
	return b, nil
}

// longBody is from what length on the long strings of a body are noted, in bytes.
const longBody = 16 << 10

// usualFields is how many fields objects usually have.
const usualFields = 16

// usualKey returns a key that requests and answers usually have, without taking memory for it; "" for others.
func usualKey(key []byte) string {
	if len(key) >= len(usualKeys) {
		return ""
	}
	for _, usual := range usualKeys[len(key)] {
		if string(key) == usual {
			return usual
		}
	}
	return ""
}

// usualKeys are by their lengths: of each there are few, and a hash of a key takes longer than to compare it with them.
var usualKeys = func() (keys [24][]string) {
	for _, key := range []string{
		"id", "object", "created", "model", "choices", "usage", "messages", "prompt", "stream", "stream_options", "max_tokens",
		"max_completion_tokens", "temperature", "top_p", "prompt_tokens", "completion_tokens", "total_tokens",
		"prompt_tokens_details", "cached_tokens", "service_tier", "system_fingerprint", "prompt_logprobs", "prompt_token_ids",
		"kv_transfer_params", "index", "message", "role", "content", "text", "logprobs", "finish_reason", "stop_reason",
		"token_ids", "tool_calls", "refusal", "annotations", "reasoning", "do_remote_prefill", "do_remote_decode",
		"remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_num_tokens",
		"tp_size",
	} {
		keys[len(key)] = append(keys[len(key)], key)
	}
	return keys
}()

// unique reports a key that appears twice. Few are compared with each other, which takes no memory.
func unique(fields []field) error {
	if len(fields) <= usualFields {
		for i := range fields {
			if index(fields[:i], fields[i].key) >= 0 {
				return errTwice // which one is the client's own text
			}
		}
		return nil
	}
	seen := make(map[string]struct{}, len(fields))
	for i := range fields {
		if _, twice := seen[fields[i].key]; twice {
			return errTwice
		}
		seen[fields[i].key] = struct{}{}
	}
	return nil
}

var errTwice = errors.New("a field appears twice in the same object")
