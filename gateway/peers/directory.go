package peers

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Peer is a gateway among those that share a Redis.
type Peer struct {
	ID      string `json:"replica"`
	Admin   string `json:"admin"` // URL of its admin port, as others reach it
	Version string `json:"version"`
}

// How gateways show that they are there. A clock is nowhere compared with another machine's: each
// gateway times by its own how long an entry has not changed.
const (
	interval = 2 * time.Second  // between two entries of one gateway
	patience = time.Second      // for Redis to answer
	silence  = 30 * time.Second // after which an entry that stays as it is is struck out
	expiry   = time.Minute      // of all entries, after the last
)

// Directory is what one gateway knows of the others. Safe for concurrent use.
type Directory struct {
	self   Peer
	client redis.UniversalClient
	key    string
	start  string // of this process, random
	log    *slog.Logger

	beats   uint64 // of Run alone, as is doubled
	doubled int    // rounds in a row that found the own entry written by another process

	mu   sync.Mutex // guards the rest
	seen map[string]sighting
}

// sighting is the entry of another gateway, and since when it has been as it is.
type sighting struct {
	peer  Peer
	text  string
	since time.Time
	gone  bool // it has not changed for too long
}

// entry is what a gateway writes of itself. Its text changes with each beat.
type entry struct {
	Peer
	Beat  uint64 `json:"beat"`
	Start string `json:"start,omitempty"`
}

// NewDirectory returns the directory of a gateway, which is kept in a hash with the prefix. The
// caller runs it.
func NewDirectory(client redis.UniversalClient, prefix string, self Peer, log *slog.Logger) *Directory {
	return &Directory{self: self, client: client, key: prefix + "gateways", start: rand.Text(), log: log, seen: make(map[string]sighting)}
}

// Run shows that this gateway is there, and learns of the others, until the context ends.
func (d *Directory) Run(ctx context.Context) {
	defer d.leave(context.WithoutCancel(ctx))
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for failing := false; ; {
		err := d.round(ctx)
		if ctx.Err() != nil {
			return
		}
		if failed := err != nil; failed != failing {
			failing = failed
			if failing {
				d.log.Warn("other gateways' admin ports are not known", "error", err.Error())
			} else {
				d.log.Info("other gateways' admin ports are known again")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// round reads the entries, and writes the own one.
func (d *Directory) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	d.beats++
	own, err := json.Marshal(entry{d.self, d.beats, d.start})
	if err != nil {
		return fmt.Errorf("encode the own entry: %w", err)
	}
	var all *redis.MapStringStringCmd
	if _, err = d.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		all = p.HGetAll(ctx, d.key)
		p.HSet(ctx, d.key, d.self.ID, own)
		p.Expire(ctx, d.key, expiry)
		return nil
	}); err != nil {
		return fmt.Errorf("share the admin port's address: %w", err)
	}
	d.warnOfDouble(all.Val()[d.self.ID])
	if silent := d.see(all.Val(), time.Now()); len(silent) > 0 {
		if err := d.client.HDel(ctx, d.key, silent...).Err(); err != nil {
			return fmt.Errorf("strike out gateways that are silent: %w", err)
		}
	}
	return nil
}

// warnOfDouble warns, once, where the own entry is written by another process too. One that it finds a single time
// is that of the process before this one, or of old data that Redis came back with.
func (d *Directory) warnOfDouble(text string) {
	var e entry
	if json.Unmarshal([]byte(text), &e) != nil || e.Start == d.start {
		d.doubled = 0
		return
	}
	if d.doubled++; d.doubled == 2 {
		d.log.Warn("another gateway has the name of this one, and neither counts what the other does: give each its own (replica)",
			"replica", d.self.ID, "admin", e.Admin)
	}
}

// see keeps what others wrote, and returns those whose entries have not changed for too long.
func (d *Directory) see(texts map[string]string, now time.Time) (silent []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.seen
	d.seen = make(map[string]sighting, len(texts))
	for id, text := range texts {
		var e entry
		if id == d.self.ID || json.Unmarshal([]byte(text), &e) != nil || e.ID != id {
			continue
		}
		s := sighting{peer: e.Peer, text: text, since: now}
		if was, known := before[id]; known && was.text == text {
			s.since = was.since
		}
		if s.gone = now.Sub(s.since) > silence; s.gone {
			silent = append(silent, id)
		}
		d.seen[id] = s
	}
	return silent
}

// Others are the other gateways by their names, with one that died for half a minute.
func (d *Directory) Others() []Peer {
	d.mu.Lock()
	defer d.mu.Unlock()
	others := make([]Peer, 0, len(d.seen))
	for _, s := range d.seen {
		if !s.gone {
			others = append(others, s.peer)
		}
	}
	slices.SortFunc(others, func(a, b Peer) int { return cmp.Compare(a.ID, b.ID) })
	return others
}

// leave strikes out the own entry. Redis may be away; the entry expires.
func (d *Directory) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := d.client.HDel(ctx, d.key, d.self.ID).Err(); err != nil {
		d.log.Debug("own entry among the gateways not struck out", "error", err.Error())
	}
}
