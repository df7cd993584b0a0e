package pools

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// The keys of servers that share GPUs. All begin with the configured prefix; the braces
// keep them on one node of a cluster.
//
//	<prefix>{gpus}         id of the gateway that lets servers sleep and wake
//	<prefix>{gpus}:closed  servers that nobody may send to, as it says: they sleep, or will
//	<prefix>{gpus}:wanted  hash: servers that other gateways want awake
//	<prefix>{gpus}:used    hash: by gateway, when it said so and the servers that it uses
const (
	turnsKey  = "{gpus}"
	closedKey = "{gpus}:closed"
	wantedKey = "{gpus}:wanted"
	usedKey   = "{gpus}:used"
)

const (
	turnsInterval = 200 * time.Millisecond // between two rounds
	turnsLease    = 5 * time.Second        // a manager that says nothing for this long is none
	turnsTime     = 150 * time.Millisecond // for one round
	turnsPatience = time.Second            // Redis that has answered no round for this long is away
	// toldWithin is how long after a decision all gateways have said what they still use:
	// one round of the manager's, and two of theirs, the first of which may have begun
	// before they knew.
	toldWithin = 3 * (turnsInterval + turnsTime)
)

// errNotManager: another gateway manages the GPUs, and there is no way to ask it.
var errNotManager = errors.New("another gateway manages these GPUs, and Redis is away")

// Turns lets one of several gateways manage the servers that share GPUs: the others ask
// it for those that they want awake, and send nothing to those that it is to put to
// sleep. While Redis is away the manager goes on, and the others have what is awake.
type Turns struct {
	id     string
	prefix string
	client redis.UniversalClient
	fleet  *Fleet
	log    *slog.Logger

	mu      sync.Mutex // guards the rest
	manages bool
	lost    bool      // Redis is away
	answer  time.Time // when Redis answered last
	round   time.Time // when the last one began that was answered
	used    []string  // by the others, as of that round; of the manager only
	others  bool      // there are any
	wanted  []string  // by us, of another manager
}

// NewTurns returns the part that a gateway takes in managing, under its own id.
func NewTurns(fleet *Fleet, client redis.UniversalClient, prefix, id string, log *slog.Logger) *Turns {
	t := &Turns{id: id, prefix: prefix, client: client, fleet: fleet, log: log}
	fleet.turns.Store(t)
	return t
}

// standOrAsk makes the caller the manager if there is no other, and renews it. The
// manager says which servers are closed, and gets how many others there are, what they
// use and what they want; others say what they use and want, and get what is closed.
var standOrAsk = redis.NewScript(`
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local manager = redis.call('GET', KEYS[1])
if manager and manager ~= ARGV[1] then
	redis.call('HSET', KEYS[4], ARGV[1], string.format('%d %s', now, ARGV[4]))
	redis.call('PEXPIRE', KEYS[4], ARGV[2])
	for i = 5, #ARGV do
		redis.call('HSET', KEYS[3], ARGV[i], '1')
		redis.call('PEXPIRE', KEYS[3], ARGV[2])
	end
	return {'asks', redis.call('GET', KEYS[2]) or ''}
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[2])
local others, used = 0, {}
local said = redis.call('HGETALL', KEYS[4])
for i = 1, #said, 2 do
	local at, servers = string.match(said[i + 1], '^(%d+) (.*)$')
	if said[i] == ARGV[1] or not at or now - at > tonumber(ARGV[2]) then
		redis.call('HDEL', KEYS[4], said[i])
	else
		others = others + 1
		table.insert(used, servers)
	end
end
local wanted = redis.call('HGETALL', KEYS[3])
redis.call('DEL', KEYS[3])
return {'manages', tostring(others), table.concat(used, ' '), unpack(wanted)}`)

// Run takes part until the context ends.
func (t *Turns) Run(ctx context.Context) {
	for Pause(ctx, turnsInterval) {
		if shared := t.shared(); len(shared) > 0 {
			t.takeRound(ctx, shared)
		}
	}
	leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), turnsTime)
	defer cancel()
	if t.Manages() { // Redis may be away; the key expires
		_ = t.client.Eval(leave, `if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end`, []string{t.prefix + turnsKey}, t.id).Err()
	}
}

// shared are the servers that share GPUs.
func (t *Turns) shared() (all []*Server) {
	for _, s := range t.fleet.Servers() {
		if s.GPUs != "" {
			all = append(all, s)
		}
	}
	return all
}

func (t *Turns) takeRound(ctx context.Context, shared []*Server) {
	ctx, cancel := context.WithTimeout(ctx, turnsTime)
	defer cancel()
	began := time.Now()
	args := []any{t.id, turnsLease.Milliseconds(), strings.Join(closed(shared), " "), strings.Join(inUse(shared), " ")}
	for _, id := range t.takeWanted() {
		args = append(args, id)
	}
	keys := []string{t.prefix + turnsKey, t.prefix + closedKey, t.prefix + wantedKey, t.prefix + usedKey}
	answer, err := standOrAsk.Run(ctx, t.client, keys, args...).StringSlice()
	if err != nil {
		t.note(err, t.Manages())
		return
	}
	t.note(nil, answer[0] == "manages")
	if answer[0] != "manages" {
		for _, s := range shared {
			s.closeTurn(slices.Contains(strings.Fields(answer[1]), s.id))
		}
		return
	}
	used, wanted := strings.Fields(answer[2]), answer[3:]
	t.heard(began, used, answer[1] != "0")
	for _, s := range shared {
		s.closeTurn(false)
		if slices.Contains(used, s.id) {
			s.turn.used(began)
		}
		if slices.Contains(wanted, s.id) && s.Asleep() && !s.awake.refuses(awakeWish, began) {
			_, _ = s.awake.want(awakeWish, false, began) // who waits for it asks again
		}
	}
}

// closed are the servers that sleep, or are to.
func closed(shared []*Server) (ids []string) {
	for _, s := range shared {
		if asleep, _ := s.turn.asleepNow(); asleep {
			ids = append(ids, s.id)
		}
	}
	return ids
}

// inUse are the servers that requests of this gateway count on.
func inUse(shared []*Server) (ids []string) {
	for _, s := range shared {
		if !s.turn.done() {
			ids = append(ids, s.id)
		}
	}
	return ids
}

// closeTurn keeps requests from the server, or lets them to it as soon as a probe says
// that it is awake.
func (s *Server) closeTurn(closed bool) {
	if s.turn.close(closed) && !closed {
		s.checkNow()
	}
}

// note keeps who manages and logs what has changed.
//
// One round that is missed says nothing: were it taken for the end, a manager would put to
// sleep what others use, and others would refuse requests.
func (t *Turns) note(err error, manages bool) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		t.answer = now
	}
	if lost := now.Sub(t.answer) > turnsPatience; lost != t.lost {
		t.lost = lost
		t.log.Info("who manages shared GPUs is agreed upon through Redis", "reachable", !lost)
	}
	if manages != t.manages {
		t.manages = manages
		t.log.Info("managing the servers that share GPUs", "manages", manages)
	}
}

// heard keeps what others use, as of a round of the manager's.
func (t *Turns) heard(round time.Time, used []string, others bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.round, t.used, t.others = round, used, others
}

// Manages reports whether this gateway lets servers sleep and wake; one that is alone,
// nil, does.
func (t *Turns) Manages() bool {
	if t == nil {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.manages
}

// want asks the manager, with the next round, to wake a server.
func (t *Turns) want(id string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lost {
		return errNotManager
	}
	if !slices.Contains(t.wanted, id) {
		t.wanted = append(t.wanted, id)
	}
	return nil
}

func (t *Turns) takeWanted() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	wanted := t.wanted
	t.wanted = nil
	return wanted
}

// othersDone reports whether no other gateway uses a server any more, since it was decided
// that it is to sleep. Those that Redis is away for cannot be asked.
func (t *Turns) othersDone(server string, decided time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.lost:
		return true
	case !t.others:
		return t.round.After(decided)
	}
	return t.round.Sub(decided) > toldWithin && !slices.Contains(t.used, server)
}
