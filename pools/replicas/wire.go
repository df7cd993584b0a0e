package replicas

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/tandem-gateway/tandem/pools"
)

// The work of a replica travels in two forms. Replicas that know both use MessagePack:
//
//	[1, replica, whole, decisions, {server: [n, t, q, l, n, t, q, l]}, {server: [p, w, p, w]}]
//
// for prefill and decode, n requests of t tokens, a queue of q microseconds of which l stay; of the
// tokens, p are of prompts and w of requests of which an answer will say that they are done. Of servers
// that the second map does not name both are 0; earlier versions neither send nor read it.
// whole says that servers that are not named have nothing; else they are as they were last
// reported. Sums are reported and never differences, so that a lost message is made good by the
// next whole one. Earlier versions know only the JSON of workMessage, which is always whole.
const (
	wireVersion = 1
	wireFields  = 5 // that each has; further ones are passed over
	wireNumbers = 8 // of a server
	wireParts   = 4 // of its tokens
)

var errWire = errors.New("not the work of a replica")

// encode writes a message in MessagePack.
func (m *workMessage) encode() []byte {
	to := msgp.AppendArrayHeader(nil, wireFields+1)
	to = msgp.AppendInt(to, wireVersion)
	to = msgp.AppendString(to, m.Replica)
	to = msgp.AppendBool(to, !m.partial)
	to = msgp.AppendUint64(to, m.Decisions)
	to = msgp.AppendMapHeader(to, uint32(len(m.Servers))) //nolint:gosec // servers of a fleet
	for id, both := range m.Servers {
		to = msgp.AppendString(to, id)
		to = msgp.AppendArrayHeader(to, wireNumbers)
		for _, w := range both {
			for _, n := range [...]int{w.Requests, w.Tokens, microseconds(w.Queue), microseconds(w.Stays)} {
				to = msgp.AppendInt(to, n)
			}
		}
	}
	return m.appendParts(to)
}

// appendParts writes which parts of the tokens are whose, of servers where there are any.
func (m *workMessage) appendParts(to []byte) []byte {
	have := uint32(0)
	for _, both := range m.Servers {
		if both[0].hasParts() || both[1].hasParts() {
			have++
		}
	}
	to = msgp.AppendMapHeader(to, have)
	for id, both := range m.Servers {
		if !both[0].hasParts() && !both[1].hasParts() {
			continue
		}
		to = msgp.AppendArrayHeader(msgp.AppendString(to, id), wireParts)
		for _, w := range both {
			to = msgp.AppendInt(msgp.AppendInt(to, w.Prompts), w.Computing)
		}
	}
	return to
}

func (s *sharedWork) hasParts() bool { return s.Prompts != 0 || s.Computing != 0 }

func microseconds(seconds float64) int { return int(seconds * 1e6) }

// decodeWork reads a message of either form.
func decodeWork(message []byte) (m workMessage, err error) {
	if len(message) > 0 && message[0] == '{' {
		err = json.Unmarshal(message, &m)
	} else {
		m, err = decodeWire(message)
	}
	if err == nil && (m.Replica == "" || len(m.Replica) > 128) {
		err = errWire
	}
	return m, err
}

func decodeWire(p []byte) (m workMessage, err error) {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil || n < wireFields {
		return m, errWire
	}
	version, p, err := msgp.ReadIntBytes(p)
	if err != nil || version != wireVersion {
		return m, errWire
	}
	if m.Replica, p, err = msgp.ReadStringBytes(p); err != nil {
		return m, err
	}
	whole, p, err := msgp.ReadBoolBytes(p)
	if err != nil {
		return m, err
	}
	if m.Decisions, p, err = msgp.ReadUint64Bytes(p); err != nil {
		return m, err
	}
	m.partial, m.current = !whole, true
	servers, p, err := msgp.ReadMapHeaderBytes(p)
	if err != nil || int(servers) > len(p)/(wireNumbers+2) {
		return m, errWire
	}
	m.Servers = make(map[string][2]sharedWork, servers)
	for range servers {
		var id string
		if id, p, err = msgp.ReadStringBytes(p); err != nil {
			return m, err
		}
		if m.Servers[id], p, err = decodeServer(p); err != nil {
			return m, err
		}
	}
	if n == wireFields {
		return m, nil
	}
	return m, m.decodeParts(p)
}

// decodeParts reads what appendParts wrote.
func (m *workMessage) decodeParts(p []byte) error {
	servers, p, err := msgp.ReadMapHeaderBytes(p)
	if err != nil || int(servers) > len(m.Servers) {
		return errWire
	}
	for range servers {
		var id string
		if id, p, err = msgp.ReadStringBytes(p); err != nil {
			return err
		}
		var numbers [wireParts]int
		if p, err = decodeNumbers(p, numbers[:]); err != nil {
			return err
		}
		if both, known := m.Servers[id]; known {
			for i := range both {
				both[i].Prompts, both[i].Computing = numbers[2*i], numbers[2*i+1]
			}
			m.Servers[id] = both
		}
	}
	return nil
}

func decodeServer(p []byte) (both [2]sharedWork, rest []byte, err error) {
	var numbers [wireNumbers]int
	if p, err = decodeNumbers(p, numbers[:]); err != nil {
		return both, nil, err
	}
	for i := range both {
		w := numbers[4*i:]
		both[i] = sharedWork{Requests: w[0], Tokens: w[1], Queue: float64(w[2]) / 1e6, Stays: float64(w[3]) / 1e6}
	}
	return both, p, nil
}

// decodeNumbers reads an array of just so many.
func decodeNumbers(p []byte, numbers []int) (rest []byte, err error) {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil || int(n) != len(numbers) {
		return nil, errWire
	}
	for i := range numbers {
		if numbers[i], p, err = msgp.ReadIntBytes(p); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// inFlight is the work that was reported, false if no replica can have it.
func (s sharedWork) inFlight() (pools.InFlight, bool) {
	if s.Requests < 0 || s.Tokens < 0 || s.Prompts < 0 || s.Prompts > s.Tokens || s.Computing < 0 || s.Computing > s.Tokens || !(s.Stays >= 0 && s.Stays <= s.Queue && s.Queue < 1e6) {
		return pools.InFlight{}, false
	}
	seconds := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
	return pools.InFlight{Requests: s.Requests, Tokens: s.Tokens, Prompts: s.Prompts, Computing: s.Computing, Queue: seconds(s.Queue), Stays: seconds(s.Stays)}, true
}
