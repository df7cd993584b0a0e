// Package drainsync shares which servers operators drain between gateways that share a Redis: what
// is said to one holds for all, and for those that start later. Every gateway keeps what it knows
// while Redis does not answer, and writes it again where Redis has lost it. It imports pools; cmd
// starts it and gives it to the admin port.
package drainsync

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/pools"
)

// Sync is what one gateway shares. Safe for concurrent use.
type Sync struct {
	fleet  *pools.Fleet
	client redis.UniversalClient
	key    string
	log    *slog.Logger

	said chan struct{} // something is to be written

	mu        sync.Mutex           // guards the rest
	drained   map[string]bool      // servers that operators drain, as far as is known
	unwritten map[string]bool      // what an operator said here, drain or not, and Redis does not have yet
	written   map[string]time.Time // when Redis had it
	newest    map[string]record    // what it had of each server when it was last looked at; replaced, never changed
}

// New returns a Sync that keeps what is shared in a hash with the prefix. The caller runs it.
func New(fleet *pools.Fleet, client redis.UniversalClient, prefix string, log *slog.Logger) *Sync {
	return &Sync{
		fleet: fleet, client: client, key: prefix + "drains", log: log, said: make(chan struct{}, 1),
		drained: make(map[string]bool), unwritten: make(map[string]bool), written: make(map[string]time.Time), newest: make(map[string]record),
	}
}

// SetDrain is pools.Fleet.SetDrain here at once, and for all other gateways as soon as Redis
// answers. false: there is no such server.
func (s *Sync) SetDrain(id string, drain bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	members := s.fleet.SetDrain(id, drain)
	for _, member := range members {
		s.unwritten[member] = drain
		s.noteLocked(member, drain)
	}
	select {
	case s.said <- struct{}{}:
	default:
	}
	return len(members) > 0
}

// Pending reports whether something was said of a server here that other gateways may not know yet: Redis does not have
// it, or has it for less time than passes until all have looked.
func (s *Sync) Pending(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, unwritten := s.unwritten[id]; unwritten {
		return true
	}
	since, is := s.written[id]
	return is && time.Since(since) < untilSeen
}

// untilSeen is how long after it was written all others have looked, and told what they have on the server.
const untilSeen = interval + 2*patience

func (s *Sync) noteLocked(id string, drain bool) {
	if drain {
		s.drained[id] = true
	} else {
		delete(s.drained, id)
	}
}

const (
	interval = time.Second // between two looks at what others said
	patience = time.Second // for Redis to answer
)

// Run shares until the context ends.
func (s *Sync) Run(ctx context.Context) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for failing := false; ; {
		err := s.round(ctx)
		if ctx.Err() != nil {
			return
		}
		if failed := err != nil; failed != failing {
			failing = failed
			if failing {
				s.log.Warn("drains are not shared with other gateways", "error", err.Error())
			} else {
				s.log.Info("drains are shared with other gateways again")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-s.said:
		}
	}
}

// round reads what is shared, writes what this gateway knows better, and drains by it.
func (s *Sync) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	texts, err := s.client.HGetAll(ctx, s.key).Result()
	if err != nil {
		return fmt.Errorf("read drains: %w", err)
	}
	now := time.Now()
	s.mu.Lock()
	here := view{
		shared: parse(texts), drained: maps.Clone(s.drained), unwritten: maps.Clone(s.unwritten), newest: s.newest, present: make(map[string]bool),
	}
	s.mu.Unlock()
	for _, server := range s.fleet.Servers() {
		here.present[server.ID()] = true
	}
	for _, c := range here.changes(now) {
		written, err := write.Run(ctx, s.client, []string{s.key}, c.server, texts[c.server], c.text(), c.force).Bool()
		switch {
		case err != nil:
			return fmt.Errorf("write drains: %w", err)
		case !written: // another gateway wrote meanwhile: the next round reads it
		case c.record != nil:
			here.shared[c.server] = *c.record
		default:
			delete(here.shared, c.server)
		}
	}
	s.take(here)
	return nil
}

// take drains servers by what is shared, where nothing else was said here meanwhile.
func (s *Sync) take(seen view) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, drain := range seen.unwritten {
		if said, still := s.unwritten[id]; still && said == drain {
			delete(s.unwritten, id)
			s.written[id] = time.Now()
		}
	}
	maps.DeleteFunc(s.written, func(_ string, since time.Time) bool { return time.Since(since) >= untilSeen })
	s.newest = seen.shared
	for id, r := range seen.shared {
		if _, said := s.unwritten[id]; said {
			continue
		}
		if _, said := seen.unwritten[id]; said {
			continue
		}
		if r.drain || s.drained[id] {
			if here := s.fleet.SetDrain(id, r.drain); len(here) > 0 && r.drain != s.drained[id] {
				s.log.Info("drain set through another gateway", "server", id, "drain", r.drain)
			}
			s.noteLocked(id, r.drain)
		}
	}
}

// write sets a field of the hash, or deletes it where the new text is empty, if it is still as it
// was read, or in any case, and returns whether it did. The hash expires two days after the last write,
// so after all that is in it.
var write = redis.NewScript(`
if ARGV[4] ~= '1' and (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then
  return 0
end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
redis.call('EXPIRE', KEYS[1], 172800)
return 1`)

// record is what is shared of one server.
type record struct {
	drain bool
	at    time.Time // when it was said, or a gateway last had the server
}

// parse reads what is shared; what is not valid is left out, and written again by who knows.
func parse(texts map[string]string) map[string]record {
	all := make(map[string]record, len(texts))
	for id, text := range texts {
		drain, at, _ := strings.Cut(text, " ")
		if seconds, err := strconv.ParseInt(at, 10, 64); err == nil && (drain == "0" || drain == "1") {
			all[id] = record{drain == "1", time.Unix(seconds, 0)}
		}
	}
	return all
}

func (r record) String() string {
	drain := "0"
	if r.drain {
		drain = "1"
	}
	return drain + " " + strconv.FormatInt(r.at.Unix(), 10)
}
