package kvstate

import (
	"encoding/binary"
	"fmt"
	"time"
)

// puts is what a source heard of its store, for the indexes that follow it. It is no part of a
// delta: a store's blocks are known by their own hashes alone, so that neither the order of the
// batches matters to them nor a gap in it, and replicas of versions that do not know them go on
// applying deltas.
//
//	version (1 byte), mark of the seed (8), when, in milliseconds since 1970 (8)
//	for each block: its tier (4 bits) below 1 where it is there (1 byte), its own hash (8)
//	CRC-32C of all before (4)
type puts struct{ blocks []byte }

const (
	putsVersion = 1
	putsHead    = 1 + 8 + 8
	putSize     = 1 + 8
	putIsThere  = 1 << 4
)

// add notes a block. Beyond maxJournal the oldest are left out: they are missing, which is no more
// than what a replica that starts does not know.
func (p *puts) add(own Hash, tier Tier, isThere bool) {
	if len(p.blocks) >= maxJournal {
		p.blocks = nil
	}
	p.blocks = append(p.blocks, byte(tier)+putIsThere*oneIf(isThere))
	p.blocks = binary.LittleEndian.AppendUint64(p.blocks, uint64(own))
}

// TakePuts returns what the source heard of its store since the last call, nil if nothing, for
// ApplyPuts.
func (s *Source) TakePuts() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	blocks := s.journal.puts.blocks
	if len(blocks) == 0 {
		return nil
	}
	s.journal.puts.blocks = blocks[:0]
	b := make([]byte, 0, putsHead+len(blocks)+4)
	b = binary.LittleEndian.AppendUint64(append(b, putsVersion), s.seed.mark)
	b = binary.LittleEndian.AppendUint64(b, uint64(time.Now().UnixMilli()))
	return sealed(append(b, blocks...))
}

// ApplyPuts notes what the same source of another index heard of its store, and how long ago by
// the clocks of both.
func (s *Source) ApplyPuts(heard []byte) error {
	body, err := s.unsealed(heard, putsVersion, putsHead)
	if err != nil {
		return err
	}
	if (len(body)-putsHead)%putSize != 0 {
		return ErrDelta
	}
	ago := time.Since(time.UnixMilli(int64(binary.LittleEndian.Uint64(body[9:]))))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	for at := putsHead; at < len(body); at += putSize {
		own, tier := Hash(binary.LittleEndian.Uint64(body[at+1:])), Tier(body[at]%putIsThere)
		if tier == GPU || tier >= tiers {
			return fmt.Errorf("%w: a store in tier %d", ErrDelta, tier)
		}
		switch {
		case body[at] >= putIsThere:
			s.storeIn(tier).believeSince(ago, own)
			s.counts.Stored++
		case s.store != nil:
			s.store.disbelieve(own)
			s.counts.Removed++
		}
	}
	return nil
}
