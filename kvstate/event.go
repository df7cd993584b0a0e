package kvstate

import (
	"errors"
	"fmt"
	"math"

	"github.com/tinylib/msgp/msgp"
)

// batch is one decoded message: [seconds since 1970, [events], rank]. It is used again
// for the next one, so that decoding allocates nothing.
//
// A message is decoded as a whole before any of it is applied: one that breaks off in
// the middle changes nothing.
type batch struct {
	seconds float64 // by the engine's clock; NaN: not reported
	events  []event
	odd     int // events left out: of a kind or form that is not known

	hashes []uint64 // of all events
	tokens []uint32
}

type eventKind uint8

const (
	unknownEvent eventKind = iota
	blockStored
	blockRemoved
	allBlocksCleared
)

// event is BlockStored, BlockRemoved or AllBlocksCleared (vLLM distributed/kv_events.py,
// which SGLang follows).
type event struct {
	kind        eventKind
	hashes      []uint64
	parent      uint64
	hasParent   bool
	tokens      []uint32
	blockTokens int
	lookahead   []uint32 // behind the last block: the engine's hashes cover so many more tokens
	adapter     []byte   // name; empty: none
	adapterID   int64    // of engines that report no name; -1: none
	salt        []byte   // beside the extra keys
	medium      []byte   // empty: not reported
	remote      bool     // in a place that is not the engine's own machine
	local       bool     // said not to be
	extra       []byte   // one msgpack array, nil or a list of keys for each block; empty: not reported
	group       int
	groupKnown  bool
	spec        []byte // kind of the KV cache group; empty: not reported
}

var (
	errBatch = errors.New("KV event batch cannot be read")
	errEvent = errors.New("KV event of a form that is not known")
)

// maxEvents of a batch: an engine publishes what one of its steps changed. Events take
// up to 16 times as much memory as their bytes.
const maxEvents = 1 << 18

// Memory of a batch kept for the next one, in elements: what a step of an engine takes. Each source has its own, and a
// replay, or a long prompt that is computed at once, comes seldom.
const (
	keptEvents = 1 << 9
	keptHashes = 1 << 11
	keptTokens = 1 << 14
)

// decode reads a payload. Strings and extra keys are slices of it. What follows a
// batch is ignored.
func (b *batch) decode(payload []byte) error {
	b.reset()
	switch msgp.NextType(payload) {
	case msgp.ArrayType:
		return b.decodeArray(payload)
	case msgp.MapType:
		return b.decodeMap(payload)
	}
	return fmt.Errorf("%w: neither an array nor a map", errBatch)
}

// reset lets go of the message that was read, to which its events refer, and of the memory that a long one took.
func (b *batch) reset() {
	clear(b.events)
	if cap(b.events) > keptEvents {
		b.events = nil
	}
	if cap(b.hashes) > keptHashes {
		b.hashes = nil
	}
	if cap(b.tokens) > keptTokens {
		b.tokens = nil
	}
	b.seconds, b.odd = math.NaN(), 0
	b.events, b.hashes, b.tokens = b.events[:0], b.hashes[:0], b.tokens[:0]
}

func (b *batch) decodeArray(p []byte) error {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil || n < 2 {
		return fmt.Errorf("%w: array of %d", errBatch, n)
	}
	if p, err = b.decodeTime(p); err != nil {
		return err
	}
	if p, err = b.decodeEvents(p); err != nil {
		return err
	}
	return skip(p, n-2)
}

func (b *batch) decodeMap(p []byte) error {
	n, p, err := msgp.ReadMapHeaderBytes(p)
	if err != nil {
		return fmt.Errorf("%w: %w", errBatch, err)
	}
	found := false
	for range n {
		var key []byte
		if key, p, err = msgp.ReadMapKeyZC(p); err != nil {
			return fmt.Errorf("%w: %w", errBatch, err)
		}
		switch string(key) {
		case "ts":
			p, err = b.decodeTime(p)
		case "events":
			found = true
			p, err = b.decodeEvents(p)
		default:
			p, err = msgp.Skip(p)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errBatch, err)
		}
	}
	if !found {
		return fmt.Errorf("%w: no events", errBatch)
	}
	return nil
}

func skip(p []byte, n uint32) (err error) {
	for range n {
		if p, err = msgp.Skip(p); err != nil {
			return fmt.Errorf("%w: %w", errBatch, err)
		}
	}
	return nil
}

// decodeTime takes any number. It is used only for the age of a batch.
func (b *batch) decodeTime(p []byte) ([]byte, error) {
	if seconds, rest, err := msgp.ReadFloat64Bytes(p); err == nil {
		b.seconds = seconds
		return rest, nil
	}
	rest, err := msgp.Skip(p)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBatch, err)
	}
	return rest, nil
}

// decodeEvents leaves out events that it does not understand.
func (b *batch) decodeEvents(p []byte) ([]byte, error) {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil {
		return nil, fmt.Errorf("%w: events: %w", errBatch, err)
	}
	for range n {
		hashes, tokens := len(b.hashes), len(b.tokens)
		e := event{adapterID: -1}
		rest, err := b.decodeEvent(p, &e)
		if err != nil {
			if rest, err = msgp.Skip(p); err != nil {
				return nil, fmt.Errorf("%w: %w", errBatch, err)
			}
			b.hashes, b.tokens = b.hashes[:hashes], b.tokens[:tokens]
			b.odd++
		} else if !b.repeats(&e) {
			if len(b.events) == maxEvents {
				return nil, fmt.Errorf("%w: more than %d events", errBatch, maxEvents)
			}
			b.events = append(b.events, e)
		}
		p = rest
	}
	return p, nil
}

// repeats reports whether an event changes nothing after the one before.
func (b *batch) repeats(e *event) bool {
	n := len(b.events)
	return e.kind == allBlocksCleared && n > 0 && b.events[n-1].kind == allBlocksCleared
}

// decodeEvent reads either encoding: an array that begins with the kind (older vLLM and
// SGLang), or a map with a type (newer).
func (b *batch) decodeEvent(p []byte, e *event) ([]byte, error) {
	switch msgp.NextType(p) {
	case msgp.ArrayType:
		return b.decodeEventArray(p, e)
	case msgp.MapType:
		return b.decodeEventMap(p, e)
	}
	return nil, errEvent
}

// Fields of the arrays behind the kind. Later versions append; missing ones at the end
// have their defaults.
var (
	storedFields  = []string{"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"}
	removedFields = []string{"block_hashes", "medium", "group_idx"}
)

func (b *batch) decodeEventArray(p []byte, e *event) ([]byte, error) {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil || n == 0 {
		return nil, errEvent
	}
	if p, err = b.decodeField("type", p, e); err != nil {
		return nil, err
	}
	var fields []string
	switch e.kind {
	case blockStored:
		fields = storedFields
		if n < 5 {
			return nil, errEvent
		}
	case blockRemoved:
		fields = removedFields
		if n < 2 {
			return nil, errEvent
		}
	}
	for i := range n - 1 {
		name := ""
		if int(i) < len(fields) {
			name = fields[i]
		}
		if p, err = b.decodeField(name, p, e); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (b *batch) decodeEventMap(p []byte, e *event) ([]byte, error) {
	n, p, err := msgp.ReadMapHeaderBytes(p)
	if err != nil {
		return nil, err
	}
	for range n {
		var key []byte
		if key, p, err = msgp.ReadMapKeyZC(p); err != nil {
			return nil, err
		}
		if p, err = b.decodeField(string(key), p, e); err != nil {
			return nil, err
		}
	}
	if e.kind == unknownEvent {
		return nil, errEvent
	}
	return p, nil
}
