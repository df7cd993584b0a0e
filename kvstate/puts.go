package kvstate

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
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
	b = binary.LittleEndian.AppendUint64(append(b, putsVersion), s.index.seed.mark)
	b = binary.LittleEndian.AppendUint64(b, uint64(time.Now().UnixMilli()))
	b = append(b, blocks...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// ApplyPuts notes what the same source of another index heard of its store, and how long ago by
// the clocks of both.
func (s *Source) ApplyPuts(heard []byte) error {
	body := len(heard) - 4
	switch {
	case body < putsHead || (body-putsHead)%putSize != 0 || heard[0] != putsVersion:
		return ErrDelta
	case crc32.Checksum(heard[:body], castagnoli) != binary.LittleEndian.Uint32(heard[body:]):
		return fmt.Errorf("%w: damaged", ErrDelta)
	case binary.LittleEndian.Uint64(heard[1:]) != s.index.seed.mark:
		return fmt.Errorf("%w: made with another secret", ErrDelta)
	}
	ago := time.Since(time.UnixMilli(int64(binary.LittleEndian.Uint64(heard[9:]))))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	for at := putsHead; at < body; at += putSize {
		own, tier := Hash(binary.LittleEndian.Uint64(heard[at+1:])), Tier(heard[at]%putIsThere)
		if tier == GPU || tier >= tiers {
			return fmt.Errorf("%w: a store in tier %d", ErrDelta, tier)
		}
		switch {
		case heard[at] >= putIsThere:
			s.storeIn(tier).believeSince(ago, own)
			s.counts.Stored++
		case s.store != nil:
			s.store.disbelieve(own)
			s.counts.Removed++
		}
	}
	return nil
}
