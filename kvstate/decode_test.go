package kvstate

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/tinylib/msgp/msgp"
)

// A batch that breaks off anywhere is unreadable as a whole: nothing of it is applied, and
// what was known before is void.
func TestDecode_ABatchThatBreaksOffIsUnreadable(t *testing.T) {
	asMap := func(first, second func([]byte) []byte) []byte { return second(first(msgp.AppendMapHeader(nil, 2))) }
	events := func(b []byte) []byte {
		b = msgp.AppendArrayHeader(msgp.AppendString(b, "events"), 1)
		return wireEvent{kind: "BlockStored", hashes: []uint64{1}, tokens: count(0, 16), size: 16}.append(b, wireForm{maps: true})
	}
	seconds := func(b []byte) []byte { return msgp.AppendInt64(msgp.AppendString(b, "ts"), 1<<40) }
	whole := map[string][]byte{
		"a map, its time first": asMap(seconds, events), "a map, its events first": asMap(events, seconds),
		"an unknown field": asMap(events, func(b []byte) []byte { return msgp.AppendString(msgp.AppendString(b, "more"), "text") }),
		"an array of five": append(append(bytes.Clone([]byte{0x95}), good(wireForm{})[1:]...), 0x01, 0xa1, 'x'),
	}
	for _, form := range []wireForm{{}, {short: true}, {maps: true}, {hashes: "bin"}, {hashes: "int"}} {
		whole[fmt.Sprintf("%+v", form)] = good(form)
	}
	for name, payload := range whole {
		var b batch
		if err := b.decode(payload); err != nil || len(b.events) == 0 || b.odd != 0 {
			t.Errorf("%s: %d events, %d odd, %v", name, len(b.events), b.odd, err)
		}
		if err := b.decode(append(bytes.Clone(payload), 0xc1)); err != nil {
			t.Errorf("%s: what follows a batch is ignored, and it says %v", name, err)
		}
		for i := range payload {
			if err := b.decode(payload[:i]); !errors.Is(err, errBatch) {
				t.Errorf("%s: cut at %d of %d: %v", name, i, len(payload), err)
			}
		}
		ix, s := opened(t, Spec{})
		s.ApplyLive(Message{Seq: 0, Payload: wireBatch(wireForm{}, 1, wireEvent{kind: "BlockStored", hashes: []uint64{1}, tokens: count(0, 16), size: 16})})
		s.ApplyLive(Message{Seq: 1, Payload: payload[:len(payload)-1]})
		if got, n := holds(ix, Prompt{Tokens: count(0, 16)}), s.State().Counts.Unreadable; got != 0 || n != 1 {
			t.Errorf("%s without its last byte: %d tokens are held, %d unreadable", name, got, n)
		}
	}
}

func TestDecode_WhatIsNoBatch(t *testing.T) {
	for name, payload := range map[string][]byte{
		"nothing": nil, "a number": {1}, "a text": {0xa1, 'x'}, "an array of one": {0x91, 0x01}, "an array of none": {0x90},
		"events that are no array": {0x92, 0x01, 0x01}, "a map without events": {0x81, 0xa2, 't', 's', 0x01}, "an empty map": {0x80},
	} {
		if err := new(batch).decode(payload); !errors.Is(err, errBatch) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Of any number the time of a batch is one, and of anything else none.
func TestDecode_Time(t *testing.T) {
	for name, x := range map[string]struct {
		wire []byte
		want float64
	}{
		"float64": {msgp.AppendFloat64(nil, 1.5), 1.5}, "nil": {msgp.AppendNil(nil), math.NaN()}, "text": {msgp.AppendString(nil, "now"), math.NaN()},
	} {
		b := batch{seconds: math.NaN()}
		rest, err := b.decodeTime(append(x.wire, 7))
		if err != nil || !bytes.Equal(rest, []byte{7}) || b.seconds != x.want && !(math.IsNaN(b.seconds) && math.IsNaN(x.want)) {
			t.Errorf("%s: %v, %v of it left, %v", name, b.seconds, rest, err)
		}
	}
}

// The same number in every form in which msgpack has it.
func TestDecodeHash(t *testing.T) {
	digest := []byte{9, 9, 9, 1, 2, 3, 4, 5, 6, 7, 8}
	for name, x := range map[string]struct {
		wire []byte
		want uint64
	}{
		"uint64": {msgp.AppendUint64(nil, 1<<63|5), 1<<63 | 5}, "small": {msgp.AppendUint64(nil, 5), 5}, "uint16": {msgp.AppendUint64(nil, 500), 500},
		"negative": {msgp.AppendInt64(nil, -2), math.MaxUint64 - 1}, "int64": {msgp.AppendInt64(nil, math.MinInt64), 1 << 63},
		"digest": {msgp.AppendBytes(nil, digest), 0x0102030405060708}, "short digest": {msgp.AppendBytes(nil, []byte{1, 2}), 0x0102}, "eight bytes": {msgp.AppendBytes(nil, digest[3:]), 0x0102030405060708},
		"empty digest": {msgp.AppendBytes(nil, nil), 0}, "text": {msgp.AppendString(nil, "a"), 0xaf63dc4c8601ec8c}, // FNV-1a of "a"
	} {
		got, rest, err := decodeHash(append(bytes.Clone(x.wire), 7))
		if got != x.want || err != nil || !bytes.Equal(rest, []byte{7}) {
			t.Errorf("%s: %x, %v left, %v; want %x", name, got, rest, err, x.want)
		}
		for i := range x.wire {
			if _, _, err := decodeHash(x.wire[:i]); err == nil {
				t.Errorf("%s: cut at %d it is read", name, i)
			}
		}
	}
	for name, wire := range map[string][]byte{"nil": msgp.AppendNil(nil), "bool": msgp.AppendBool(nil, true), "array": {0x90}} {
		if _, _, err := decodeHash(wire); err == nil {
			t.Errorf("%s is no hash", name)
		}
	}
}

// A first block's parent is none, an empty digest or zero.
func TestDecodeParent(t *testing.T) {
	for name, x := range map[string]struct {
		wire []byte
		want uint64
		has  bool
		good bool
	}{
		"none": {msgp.AppendNil(nil), 0, false, true}, "zero": {msgp.AppendUint64(nil, 0), 0, false, true}, "empty": {msgp.AppendBytes(nil, nil), 0, false, true},
		"one": {msgp.AppendUint64(nil, 1), 1, true, true}, "bool": {msgp.AppendBool(nil, true), 0, true, false},
	} {
		parent, has, _, err := decodeParent(x.wire)
		if parent != x.want || has != x.has || (err == nil) != x.good {
			t.Errorf("%s: %d, %v, %v", name, parent, has, err)
		}
	}
}

// Tokens in every width, up to the largest that there is, and no further.
func TestDecodeTokens(t *testing.T) {
	all := []uint32{0, 1, 127, 128, 255, 256, 65535, 65536, math.MaxInt32, math.MaxUint32}
	for name, put := range map[string]func([]byte, uint32) []byte{
		"unsigned": msgp.AppendUint32,
		"signed":   func(b []byte, v uint32) []byte { return msgp.AppendInt64(b, int64(v)) },
		"int64": func(b []byte, v uint32) []byte {
			return append(b, 0xd3, 0, 0, 0, 0, byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
		},
		"uint32": func(b []byte, v uint32) []byte { return append(b, 0xce, byte(v>>24), byte(v>>16), byte(v>>8), byte(v)) },
	} {
		wire := msgp.AppendArrayHeader(nil, uint32(len(all)))
		for _, v := range all {
			wire = put(wire, v)
		}
		b := batch{tokens: []uint32{42}}
		got, rest, err := b.decodeTokens(append(bytes.Clone(wire), 0xc0))
		if err != nil || !slices.Equal(got, all) || len(rest) != 1 || len(b.tokens) != 1+len(all) || cap(got) != len(got) {
			t.Errorf("%s: %v, %d bytes left, %v", name, got, len(rest), err)
		}
		for i := range wire {
			if _, _, err := new(batch).decodeTokens(wire[:i]); err == nil {
				t.Errorf("%s: cut at %d of %d it is read", name, i, len(wire))
			}
		}
	}
	for name, wire := range map[string][]byte{
		"beyond": msgp.AppendInt64([]byte{0x91}, math.MaxUint32+1), "negative": {0x91, 0xff}, "text": {0x91, 0xa1, 'x'}, "no array": {1},
	} {
		if _, _, err := new(batch).decodeTokens(wire); err == nil {
			t.Errorf("%s: it is read", name)
		}
	}
}

func TestDecode_Numbers(t *testing.T) {
	for _, v := range []int64{0, 1, math.MaxInt32} {
		if got, rest, err := decodeSmall(msgp.AppendInt64(nil, v)); int64(got) != v || len(rest) != 0 || err != nil {
			t.Errorf("%d became %d, %v", v, got, err)
		}
	}
	for _, wire := range [][]byte{msgp.AppendInt64(nil, -1), msgp.AppendInt64(nil, math.MaxInt32+1), msgp.AppendNil(nil), nil} {
		if _, _, err := decodeSmall(wire); err == nil {
			t.Errorf("%x is no size", wire)
		}
	}
	for _, x := range []struct {
		wire []byte
		want int64
		good bool
	}{
		{msgp.AppendNil(nil), -1, true}, {msgp.AppendInt64(nil, 0), 0, true}, {msgp.AppendInt64(nil, 7), 7, true}, {msgp.AppendInt64(nil, -1), -1, false}, {nil, 0, false}, {[]byte{0xa1, 'x'}, 0, false},
	} {
		if got, _, err := decodeID(x.wire); (err == nil) != x.good || x.good && got != x.want {
			t.Errorf("%x: %d, %v", x.wire, got, err)
		}
	}
	if text, _, err := decodeText(msgp.AppendNil(nil)); len(text) != 0 || err != nil {
		t.Errorf("no text: %q, %v", text, err)
	}
	if text, _, err := decodeText(msgp.AppendString(nil, "a")); string(text) != "a" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	if _, _, err := decodeText([]byte{1}); err == nil {
		t.Error("a number is no text")
	}
}

// Engines name their tiers in their own ways.
func TestTierOf(t *testing.T) {
	for medium, want := range map[string]Tier{
		"": GPU, "GPU": GPU, "gpu": GPU, "GPU_0": GPU, "hbm": GPU, "CPU": CPU, "cpu": CPU, "CPU_PINNED": CPU, "HOST_MEMORY": CPU, "dram": CPU,
		"DISK": Disk, "ssd": Disk, "NVMe": Disk, "STORAGE": Disk, "storage_backend": Disk, "FILE": Disk, "filesystem": Disk, "fs": Disk,
		"FSX": nowhere, "tape": nowhere, "XCPU": nowhere, "CPU" + string(make([]byte, 29)): CPU, "CPU" + string(make([]byte, 30)): nowhere,
	} {
		got, known := tierOf([]byte(medium))
		if got != want || known != (want != nowhere) {
			t.Errorf("%q: %v, known %v", medium, got, known)
		}
	}
	for tier, name := range map[Tier]string{GPU: "gpu", CPU: "cpu", Disk: "disk", nowhere: "nowhere"} {
		if tier.String() != name {
			t.Errorf("%v is not %s", tier, name)
		}
	}
}
