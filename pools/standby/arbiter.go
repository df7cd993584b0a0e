package standby

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/election"
)

// The keys of servers that share GPUs. All begin with the configured prefix; the braces
// keep them on one node of a cluster.
//
//	<prefix>{gpus}         id of the gateway that lets servers sleep and wake
//	<prefix>{gpus}:closed  servers that no gateway may send to: they sleep, or will
//	<prefix>{gpus}:wanted  hash: servers that other gateways want awake
//	<prefix>{gpus}:used    hash: by gateway, when it reported and the servers that it uses
const (
	managerKey = "{gpus}"
	closedKey  = "{gpus}:closed"
	wantedKey  = "{gpus}:wanted"
	usedKey    = "{gpus}:used"
)

const (
	roundInterval = 200 * time.Millisecond // between two rounds
	managerLease  = 5 * time.Second        // a manager that does not renew it for this long is none
	roundTime     = 150 * time.Millisecond // for one round
	redisPatience = time.Second            // Redis that has answered no round for this long is away
	// reportedWithin is how long after a decision all gateways have reported what they still use:
	// one round of the manager's, and two of theirs, the first of which may have begun
	// before they knew.
	reportedWithin = 3 * (roundInterval + roundTime)
)

// errNotManager: another gateway manages the GPUs, and there is no way to ask it.
var errNotManager = errors.New("another gateway manages these GPUs, and Redis is away")

// Arbiter lets one of several gateways manage the servers that share GPUs: the others ask
// it for those that they want awake, and send nothing to those that it is to put to
// sleep. While Redis is away the manager goes on, and the others have what is awake.
type Arbiter struct {
	prefix string
	lease  *election.Lease // on managing
	fleet  *pools.Fleet
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

// NewArbiter returns the part that a gateway takes in managing, under its own id.
func NewArbiter(fleet *pools.Fleet, client redis.UniversalClient, prefix, id string, log *slog.Logger) *Arbiter {
	return &Arbiter{prefix: prefix, lease: election.NewLease(client, prefix+managerKey, id, managerLease), fleet: fleet, log: log}
}

// leadOrRequest is one round: of the manager, or of a gateway that asks it. The manager sets
// which servers are closed, and gets how many others there are, what they use and what they
// want; others report what they use and want, and get what is closed.
var leadOrRequest = election.NewScript(`
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if held ~= ARGV[1] then
	redis.call('HSET', KEYS[4], ARGV[1], string.format('%d %s', now, ARGV[5]))
	redis.call('PEXPIRE', KEYS[4], ARGV[2])
	for i = 6, #ARGV do
		redis.call('HSET', KEYS[3], ARGV[i], '1')
		redis.call('PEXPIRE', KEYS[3], ARGV[2])
	end
	return {'asks', redis.call('GET', KEYS[2]) or ''}
end
redis.call('SET', KEYS[2], ARGV[4], 'PX', ARGV[2])
local others, used = 0, {}
local reports = redis.call('HGETALL', KEYS[4])
for i = 1, #reports, 2 do
	local at, servers = string.match(reports[i + 1], '^(%d+) (.*)$')
	if reports[i] == ARGV[1] or not at or now - at > tonumber(ARGV[2]) then
		redis.call('HDEL', KEYS[4], reports[i])
	else
		others = others + 1
		table.insert(used, servers)
	end
end
local wanted = redis.call('HGETALL', KEYS[3])
redis.call('DEL', KEYS[3])
return {'manages', tostring(others), table.concat(used, ' '), unpack(wanted)}`)

// Run takes part until the context ends.
func (a *Arbiter) Run(ctx context.Context) {
	for pools.Pause(ctx, roundInterval) {
		if shared := a.shared(); len(shared) > 0 {
			a.takeRound(ctx, shared)
		}
	}
	leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), roundTime)
	defer cancel()
	if a.Manages() { // Redis may be away; the key expires
		_ = a.lease.Release(leave)
	}
}

// shared are the servers that share GPUs.
func (a *Arbiter) shared() (all []*pools.Server) {
	for _, s := range a.fleet.Servers() {
		if s.GPUs != "" {
			all = append(all, s)
		}
	}
	return all
}

func (a *Arbiter) takeRound(ctx context.Context, shared []*pools.Server) {
	ctx, cancel := context.WithTimeout(ctx, roundTime)
	defer cancel()
	began := time.Now()
	args := []any{strings.Join(closed(shared), " "), strings.Join(inUse(shared), " ")}
	for _, id := range a.takeWanted() {
		args = append(args, id)
	}
	keys := []string{a.prefix + closedKey, a.prefix + wantedKey, a.prefix + usedKey}
	answer, err := a.lease.HoldAnd(ctx, leadOrRequest, keys, args...).StringSlice()
	if err != nil {
		a.recordManager(err, a.Manages())
		return
	}
	a.recordManager(nil, answer[0] == "manages")
	if answer[0] != "manages" {
		for _, s := range shared {
			s.CloseGPUShare(slices.Contains(strings.Fields(answer[1]), s.ID()))
		}
		return
	}
	used, wanted := strings.Fields(answer[2]), answer[3:]
	a.keep(began, used, answer[1] != "0")
	for _, s := range shared {
		s.CloseGPUShare(false)
		if slices.Contains(used, s.ID()) {
			s.GPUShare().RecordUse(began)
		}
		if slices.Contains(wanted, s.ID()) && s.Asleep() && !s.WakeRequests().Refuses(began) {
			s.WakeRequests().Ask() // what waits for it asks again
		}
	}
}

// closed are the servers that sleep, or are to.
func closed(shared []*pools.Server) (ids []string) {
	for _, s := range shared {
		if asleep, _ := s.GPUShare().Asleep(); asleep {
			ids = append(ids, s.ID())
		}
	}
	return ids
}

// inUse are the servers that requests of this gateway count on.
func inUse(shared []*pools.Server) (ids []string) {
	for _, s := range shared {
		if !s.GPUShare().Unused() {
			ids = append(ids, s.ID())
		}
	}
	return ids
}

// recordManager keeps which gateway manages and logs what has changed.
//
// One round that is missed proves nothing: were it taken for the end, a manager would put to
// sleep what others use, and others would refuse requests.
func (a *Arbiter) recordManager(err error, manages bool) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		a.answer = now
	}
	if lost := now.Sub(a.answer) > redisPatience; lost != a.lost {
		a.lost = lost
		a.log.Info("gateways agree through Redis which of them manages shared GPUs", "reachable", !lost)
	}
	if manages != a.manages {
		a.manages = manages
		a.log.Info("managing the servers that share GPUs", "manages", manages)
	}
}

// keep takes over what others use, as of a round of the manager's.
func (a *Arbiter) keep(round time.Time, used []string, others bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.round, a.used, a.others = round, used, others
}

// Manages reports whether this gateway lets servers sleep and wake; one that is alone,
// nil, does.
func (a *Arbiter) Manages() bool {
	if a == nil {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.manages
}

// request asks the manager, with the next round, to wake a server.
func (a *Arbiter) request(id string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lost {
		return errNotManager
	}
	if !slices.Contains(a.wanted, id) {
		a.wanted = append(a.wanted, id)
	}
	return nil
}

func (a *Arbiter) takeWanted() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	wanted := a.wanted
	a.wanted = nil
	return wanted
}

// othersDone reports whether no other gateway uses a server any more, since it was decided
// that it is to sleep. Those that Redis is away for cannot be asked.
func (a *Arbiter) othersDone(server string, decided time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.lost:
		return true
	case !a.others:
		return a.round.After(decided)
	}
	return a.round.Sub(decided) > reportedWithin && !slices.Contains(a.used, server)
}
