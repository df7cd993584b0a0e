package load

import (
	"errors"
	"fmt"

	"github.com/tinylib/msgp/msgp"
)

// pushedTag is the tag of SGLang's pushed load.
const pushedTag = "LoadStat"

// pushedFields are how many values follow the tag at least; later versions append others.
const pushedFields = 4

// ParsePushed reads the load that a scheduler of SGLang pushes over ZMQ, of one rank (sglang 0.5.23,
// srt/managers/scheduler_components/load_publisher.py, LoadStat): a msgpack array of the tag, running
// and waiting requests, tokens of KV in use and of its capacity (0: unknown), the rank, and prompt
// tokens that wait and are not cached.
func ParsePushed(payload []byte) (Load, error) {
	n, rest, err := msgp.ReadArrayHeaderBytes(payload)
	if err != nil {
		return Load{}, err
	}
	tag, rest, err := msgp.ReadStringZC(rest)
	if err != nil || string(tag) != pushedTag || n < 1+pushedFields {
		return Load{}, fmt.Errorf("pushed load: no %s of %d values", pushedTag, pushedFields)
	}
	var values [pushedFields]float64
	for i := range values {
		if values[i], rest, err = readCount(rest); err != nil {
			return Load{}, err
		}
	}
	l := Load{Engine: "sglang"}
	l.Running.add(&values[0])
	l.Waiting.add(&values[1])
	l.RunningTokens.add(&values[2])
	if capacity := values[3]; capacity > 0 {
		l.KVTokens.add(&capacity)
		l.KVUsed = Gauge{Value: min(1, values[2]/capacity), Known: true}
	}
	if n > 2+pushedFields { // the rank, then prompt tokens
		if rest, err = msgp.Skip(rest); err != nil {
			return Load{}, err
		}
		tokens, _, err := readCount(rest)
		if err != nil {
			return Load{}, err
		}
		l.WaitingTokens.add(&tokens)
	}
	return l, nil
}

var errNegative = errors.New("pushed load: a count below zero")

func readCount(b []byte) (count float64, rest []byte, err error) {
	n, rest, err := msgp.ReadInt64Bytes(b)
	if err == nil && n < 0 {
		err = errNegative
	}
	return float64(n), rest, err
}

// SumOfRanks is the load of a server whose ranks are so loaded: counts add up, the fullest one's KV
// use counts, and it is as old as the oldest.
func SumOfRanks(ranks []Load) (sum Load) {
	for i := range ranks {
		r := &ranks[i]
		if i == 0 {
			sum = *r
			continue
		}
		for _, g := range [...]struct{ to, from *Gauge }{
			{&sum.Running, &r.Running}, {&sum.Waiting, &r.Waiting}, {&sum.RunningTokens, &r.RunningTokens},
			{&sum.WaitingTokens, &r.WaitingTokens}, {&sum.KVTokens, &r.KVTokens},
		} {
			*g.to = Gauge{Value: g.to.Value + g.from.Value, Known: g.to.Known && g.from.Known}
		}
		sum.KVUsed = Gauge{Value: max(sum.KVUsed.Value, r.KVUsed.Value), Known: sum.KVUsed.Known && r.KVUsed.Known}
		if r.At.Before(sum.At) {
			sum.At = r.At
		}
	}
	return sum
}
