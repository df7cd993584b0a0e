package kvstate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"
)

// A delta carries what a source learned to an index that does not receive from the engine
// itself. A snapshot is a delta that begins with a reset. Both are made for a store
// between replicas: about 16 bytes a block, no tokens.
//
//	version (1 byte), mark of the seed (8), epoch (8),
//	from: known (1), number (8), checksum (8)       the batch that it follows
//	to:   likewise                                  the last batch in it
//	fresh (1): from does not matter
//	operations (see journal)
//	CRC-32C of all before (4)
const (
	deltaVersion = 1
	deltaHead    = 1 + 8 + 8 + 17 + 17 + 1
)

var (
	// ErrDelta is returned for a delta that is damaged, or made with another secret or
	// by another version.
	ErrDelta = errors.New("KV delta cannot be used")
	// ErrDeltaGap is returned for a delta that does not follow what the source knows: a
	// snapshot is needed first.
	ErrDeltaGap = errors.New("KV delta does not follow")
)

// Record turns the collecting of deltas on or off. The first delta after it follows
// what the source knows now.
func (s *Source) Record(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.journal = journal{on: on, from: s.seq.last}
}

// TakeDelta returns what the source changed since the last call, nil if nothing. When
// too much came together it is a snapshot.
func (s *Source) TakeDelta() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := &s.journal
	if !j.on || j.from == s.seq.last && len(j.ops) == 0 && !j.lost {
		return nil
	}
	delta := s.encodeLocked(j)
	if j.lost {
		delta = s.snapshotLocked()
	}
	s.journal = journal{on: true, from: s.seq.last, ops: j.ops[:0], puts: j.puts}
	return delta
}

// LoseDelta makes the next delta a snapshot: one did not reach the replicas that apply them.
func (s *Source) LoseDelta() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.journal.lost = true
}

// Snapshot returns all that the source knows. Of two snapshots of a source the one with
// the later epoch is newer, and with equal epochs the one with the later number; see
// SnapshotOrder.
func (s *Source) Snapshot() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snapshotLocked()
}

// SnapshotOrder returns the epoch and the number of the last batch of a delta or
// snapshot.
func SnapshotOrder(delta []byte) (epoch, seq uint64, err error) {
	if len(delta) < deltaHead+4 || delta[0] != deltaVersion {
		return 0, 0, ErrDelta
	}
	return binary.LittleEndian.Uint64(delta[9:]), binary.LittleEndian.Uint64(delta[9+8+17+1:]), nil
}

func (s *Source) snapshotLocked() []byte {
	j := journal{on: true, fresh: true, ops: make([]byte, 0, 17*s.blocks()+64)}
	j.ops = append(j.ops, opReset)
	for _, h := range s.holders {
		h.record(&j)
	}
	return s.encodeLocked(&j)
}

// sealed is a message to another index, with its checksum.
func sealed(body []byte) []byte {
	return binary.LittleEndian.AppendUint32(body, crc32.Checksum(body, castagnoli))
}

// unsealed is the body of a message of a version, which begins with that and the mark of the seed, and has a head of so
// many bytes: it came as it was sent, and was made with the same secret.
func (s *Source) unsealed(message []byte, version byte, head int) (body []byte, err error) {
	if len(message) < head+4 || message[0] != version {
		return nil, ErrDelta
	}
	body, sum := message[:len(message)-4], message[len(message)-4:]
	switch {
	case crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(sum):
		return nil, fmt.Errorf("%w: damaged", ErrDelta)
	case binary.LittleEndian.Uint64(body[1:]) != s.seed.mark:
		return nil, fmt.Errorf("%w: made with another secret", ErrDelta)
	}
	return body, nil
}

func (s *Source) encodeLocked(j *journal) []byte {
	b := make([]byte, 0, deltaHead+len(j.ops)+4)
	b = append(b, deltaVersion)
	b = binary.LittleEndian.AppendUint64(b, s.seed.mark)
	b = binary.LittleEndian.AppendUint64(b, s.epoch)
	b = appendStamp(b, j.from)
	b = appendStamp(b, s.seq.last)
	b = append(b, oneIf(j.fresh))
	return sealed(append(b, j.ops...))
}

func appendStamp(b []byte, s stamp) []byte {
	b = append(b, oneIf(s.known))
	b = binary.LittleEndian.AppendUint64(b, s.seq)
	return binary.LittleEndian.AppendUint64(b, s.sum)
}

func readStamp(b []byte) stamp {
	return stamp{b[0] == 1, binary.LittleEndian.Uint64(b[1:]), binary.LittleEndian.Uint64(b[9:])}
}

func oneIf(is bool) byte {
	if is {
		return 1
	}
	return 0
}

// Apply carries out a delta or a snapshot of the same source from another index. One
// that is applied already changes nothing. Before the feed connects, a snapshot makes
// the source go on where the other one was; the replay then shows whether that is
// still true.
func (s *Source) Apply(delta []byte) error {
	s.mu.Lock()
	err := s.applyDeltaLocked(delta)
	s.mu.Unlock()
	s.index.trimWhenFull()
	return err
}

func (s *Source) applyDeltaLocked(delta []byte) error {
	body, err := s.unsealed(delta, deltaVersion, deltaHead)
	if err != nil {
		return err
	}
	epoch := binary.LittleEndian.Uint64(delta[9:])
	from, to, fresh := readStamp(delta[17:]), readStamp(delta[34:]), delta[51] == 1
	switch {
	case s.closed:
		return nil
	case !fresh && to == s.seq.last:
		return nil
	case !fresh && from != s.seq.last:
		return ErrDeltaGap
	}
	if !fresh {
		s.counts.LastBatch = time.Now()
	}
	if fresh && s.seq.last.known && epoch > s.epoch { // the one who received it saw the engine restart
		s.counts.Restarts++
		s.counts.Resets[ResetRestart]++
	}
	s.age = s.index.age.now()
	confirmed := s.counts.Stored
	err = s.applyOps(body[deltaHead:])
	s.index.age.confirm(int(s.counts.Stored - confirmed))
	s.recount()
	if err != nil {
		s.resetLocked(ResetUnreadable)
		return err
	}
	s.epoch = epoch
	if fresh {
		s.seq.forget()
	}
	if to.known {
		s.seq.resume(to)
	}
	return nil
}

// record writes down what the holder has: runs of blocks, heads first, then the copies
// beyond the first.
func (h *holder) record(j *journal) {
	type start struct {
		node, parent uint32
	}
	var starts []start
	push := func(first, parent uint32) {
		for c := first; c != 0; c = h.nodes.node(c).next {
			starts = append(starts, start{c, parent})
		}
	}
	push(h.nodes.node(0).child, 0)
	for len(starts) > 0 {
		at := starts[len(starts)-1]
		starts = starts[:len(starts)-1]
		n := h.nodes.node(at.node)
		tier := n.fastest()
		j.begin(h, tier, at.parent != 0, h.nodes.node(at.parent).engine)
		for i := at.node; ; {
			n = h.nodes.node(i)
			j.block(n.engine, n.own)
			c := n.child
			if c == 0 || h.nodes.node(c).fastest() != tier {
				push(c, i)
				break
			}
			push(h.nodes.node(c).next, i)
			i = c
		}
		j.end()
	}
	for t := GPU; t < tiers; t++ {
		h.each(func(_ uint32, n *node) {
			more := n.copies(t)
			if t == n.fastest() {
				more--
			}
			for range more {
				j.copy(opHold, h, t, n.engine)
			}
		})
	}
	j.end()
}
