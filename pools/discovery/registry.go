package discovery

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/pools"
)

// Servers may register themselves in Redis. The keys begin with the configured prefix:
//
//	<prefix>servers       set of names
//	<prefix>server:<name> the server as JSON (Entry), with a TTL
//	<prefix>registry      a random text that lives as long as it can be written, by which gateways
//	                      notice that Redis lost the others, or takes none
//
// A name is anything unique, such as host:port. The program that starts an engine can write
// them, again and again before the TTL ends:
//
//	redis-cli SET tandem:server:10.0.0.1:8000 '{"url":"http://10.0.0.1:8000","role":"prefill"}' EX 10
//	redis-cli SADD tandem:servers 10.0.0.1:8000
const (
	registrySet = "servers"
	registryKey = "server:"
	contentKey  = "registry"
)

const (
	registryInterval = 300 * time.Millisecond // between two looks
	registryTime     = time.Second            // for one look
	registerAgain    = time.Minute            // for servers to register again that Redis lost
	contentLife      = time.Minute            // of contentKey, from the last look of any gateway on
	maxRegistered    = 4096
	maxNames         = 1 << 16  // that are read to choose those from
	maxRecord        = 16 << 10 // bytes
)

// Registry finds the servers that registered themselves. While Redis is away, or takes no records
// since it is full or a replica, those that were known stay; and when it is back, or was emptied, those
// that have not registered again stay for a time: a server that is really gone fails its probes.
type Registry struct {
	client redis.UniversalClient
	prefix string
	found  func([]pools.Spec)
	log    *slog.Logger

	reported    []pools.Spec
	known       map[string]registration // by name, at the last look
	invalid     map[string]bool         // names whose records are unusable, as logged
	unreachable bool                    // Redis does not answer, as logged
	everRead    bool                    // it has been read once

	content       string        // what contentKey held at the last look; "": nothing
	registerAgain time.Duration // as the constant; tests wait less
	keeping       bool          // some have no record, as logged

	tooMany bool // there are more names than are accepted, as logged
}

// registration is a record that was read.
type registration struct {
	record string
	spec   pools.Spec
	id     string
	behind string // the name whose record of the same server counts, as logged; "": this one does

	until time.Time // it stays until then if its record is lost; zero: it does not
}

// NewRegistry returns a source of servers; found receives all of them whenever they
// change.
func NewRegistry(client redis.UniversalClient, prefix string, found func([]pools.Spec), log *slog.Logger) *Registry {
	return &Registry{client: client, prefix: prefix, found: found, log: log, invalid: make(map[string]bool), registerAgain: registerAgain}
}

// Run looks until the context ends.
func (r *Registry) Run(ctx context.Context) {
	for ctx.Err() == nil {
		specs, err := r.readAll(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !r.unreachable:
			r.unreachable = true
			r.log.Warn("registry not readable, the servers known from it stay", "error", err.Error())
		case err == nil:
			r.unreachable = false
			if !reflect.DeepEqual(specs, r.reported) || !r.everRead {
				r.reported, r.everRead = specs, true
				r.found(specs)
			}
		}
		pools.Pause(ctx, registryInterval)
	}
}

// readAll reads all records. Names whose record has expired are taken out of the set; one
// that registers again just then is back with its next beat. A look of which anything stays
// unanswered is of no use: the servers known so far stay.
func (r *Registry) readAll(ctx context.Context) ([]pools.Spec, error) {
	ctx, cancel := context.WithTimeout(ctx, registryTime)
	defer cancel()
	names, err := r.names(ctx)
	if err != nil {
		return nil, err
	}
	records := make([]*redis.StringCmd, len(names))
	// Each command has its own error.
	_, _ = r.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, name := range names {
			records[i] = p.GetRange(ctx, r.prefix+registryKey+name, 0, maxRecord)
		}
		return nil
	})
	for _, record := range records {
		if err := record.Err(); err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return nil, err
		}
	}
	specs, expired := r.take(names, records, r.noticeLoss(ctx), time.Now())
	if len(expired) > 0 {
		r.client.SRem(ctx, r.prefix+registrySet, expired...)
	}
	return specs, nil
}

// loss is whether the records of servers that are there may be missing.
type loss int

const (
	nothingLost loss = iota
	mayBeLost        // Redis was away, so that none could be repeated, or holds not what it held at the last look
	refused          // it takes none now
)

// holdContent lets the text at a key live on, a new one where there is none, and returns it.
var holdContent = redis.NewScript(`
local held = redis.call('get', KEYS[1]) or ARGV[1]
redis.call('set', KEYS[1], held, 'px', ARGV[2])
return held`)

// noticeLoss is for behind a look at the records: what they lack because Redis lost it is known then.
func (r *Registry) noticeLoss(ctx context.Context) loss {
	held, err := holdContent.Run(ctx, r.client, []string{r.prefix + contentKey}, rand.Text(), contentLife.Milliseconds()).Text()
	switch before := r.content; {
	case redis.HasErrorPrefix(err, "NOPERM"): // others may write what this gateway may not
		return nothingLost
	case err != nil:
		return refused
	default:
		r.content = held
		if r.unreachable || before != "" && before != held {
			return mayBeLost
		}
		return nothingLost
	}
}

// keep adds those servers to the known ones that have no record and stay for a time, and returns their names. Where
// records may be lost those have that time too that are as they were: theirs may be missing at the next look.
func (r *Registry) keep(known map[string]registration, lost loss, now time.Time) (kept []string) {
	again := now.Add(r.registerAgain)
	for name, server := range known {
		was, before := r.known[name]
		if server.until = (time.Time{}); lost != nothingLost && before && was.record == server.record {
			server.until = again
		}
		known[name] = server
	}
	for _, name := range slices.Sorted(maps.Keys(r.known)) {
		was := r.known[name]
		if _, there := known[name]; there || r.invalid[name] {
			continue
		}
		if lost == refused || lost == mayBeLost && was.until.IsZero() {
			was.until = again
		}
		if now.Before(was.until) {
			known[name] = was
			kept = append(kept, name)
		}
	}
	if len(kept) > 0 && !r.keeping {
		r.log.Warn("records of servers were lost, or cannot be repeated: these servers stay for a time", "servers", len(kept), "time", r.registerAgain.String())
	}
	r.keeping = len(kept) > 0
	return kept
}

// take makes servers of what names have as their records. Of two records of one server that of the first name counts;
// the other one is logged when it comes or changes.
func (r *Registry) take(names []string, records []*redis.StringCmd, lost loss, now time.Time) (specs []pools.Spec, expired []any) {
	known := make(map[string]registration, len(names))
	first := make(map[string]string, len(names)) // names, by the ID of their server
	for i, name := range names {
		record, err := records[i].Result()
		if err == nil && record == "" {
			expired = append(expired, name)
			delete(r.invalid, name)
			continue
		}
		server, ok := r.read(name, record, err)
		if !ok {
			continue
		}
		counts, twice := first[server.id]
		if twice && server.behind != counts {
			r.log.Warn("a server is registered by two records, the first counts", "server", server.id, "first", counts, "second", name)
		}
		server.behind = counts
		known[name] = server
		if !twice {
			first[server.id] = name
			specs = append(specs, server.spec)
		}
	}
	for _, name := range r.keep(known, lost, now) {
		if server := known[name]; first[server.id] == "" {
			first[server.id] = name
			specs = append(specs, server.spec)
		}
	}
	r.known = known
	return specs, expired
}

// names returns the registered names, sorted, maxRegistered at most. Where there are more,
// those stay that are known to be servers, so that the fleet does not change with each look.
func (r *Registry) names(ctx context.Context) ([]string, error) {
	names, err := r.client.SRandMemberN(ctx, r.prefix+registrySet, maxNames).Result()
	if err != nil {
		return nil, err
	}
	slices.SortFunc(names, func(a, b string) int {
		_, knownA := r.known[a]
		_, knownB := r.known[b]
		if knownA != knownB && knownA {
			return -1
		}
		if knownA != knownB {
			return 1
		}
		return cmp.Compare(a, b)
	})
	if tooMany := len(names) > maxRegistered; tooMany != r.tooMany {
		r.tooMany = tooMany
		if tooMany {
			r.log.Warn("more servers registered themselves than are taken in", "names", len(names), "most", maxRegistered)
		}
	}
	names = names[:min(len(names), maxRegistered)]
	slices.Sort(names)
	return names, nil
}

// read turns a record into a server, false if it is unusable, which is logged once. A record
// that is as it was at the look before is not parsed again.
func (r *Registry) read(name, record string, err error) (registration, bool) {
	if was, known := r.known[name]; known && err == nil && was.record == record {
		return was, true
	}
	var spec pools.Spec
	if err == nil {
		spec, err = parseRecord([]byte(record))
	}
	if err == nil {
		delete(r.invalid, name)
		if unknown := unknownField(record); unknown != nil {
			r.log.Warn("a server registered itself with a field that is not known, the others count", "name", name, "error", unknown.Error())
		}
		return registration{record: record, spec: spec, id: spec.ID()}, true
	}
	if !r.invalid[name] && len(r.invalid) < maxRegistered {
		r.invalid[name] = true
		r.log.Error("a server registered itself in a way that is of no use", "name", name, "error", err.Error())
	}
	return registration{}, false
}

func parseRecord(record []byte) (pools.Spec, error) {
	if len(record) > maxRecord {
		return pools.Spec{}, fmt.Errorf("longer than %d bytes", maxRecord)
	}
	var e Entry
	if err := json.Unmarshal(record, &e); err != nil {
		return pools.Spec{}, err
	}
	role, err := ParseRole(e.Role)
	if err != nil {
		return pools.Spec{}, err
	}
	spec := e.Spec(role)
	return spec, spec.Validate()
}

// unknownField is an error that names a field of a record that this gateway does not know: a mistyped one, or one that a
// newer gateway knows.
func unknownField(record string) error {
	strict := json.NewDecoder(strings.NewReader(record))
	strict.DisallowUnknownFields()
	return strict.Decode(new(Entry))
}

// Register keeps a server registered until the context ends, and then takes it out.
// It is for programs that start engines; see tandem register.
func Register(ctx context.Context, client redis.UniversalClient, prefix string, e Entry, ttl time.Duration, log *slog.Logger) error {
	record, err := json.Marshal(e)
	if err != nil {
		return err
	}
	spec, err := parseRecord(record)
	if err != nil {
		return err
	}
	key, name := prefix+registryKey+spec.ID(), spec.ID()
	for registered, logged := false, false; ctx.Err() == nil; pools.Pause(ctx, ttl/4) {
		_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
			p.Set(ctx, key, record, ttl)
			p.SAdd(ctx, prefix+registrySet, name)
			return nil
		})
		if ok := err == nil; (ok != registered || !logged) && ctx.Err() == nil {
			registered, logged = ok, true
			if ok {
				log.Info("registered", "server", name, "role", spec.Role.String())
			} else {
				log.Warn("not registered, trying again", "server", name, "error", err.Error())
			}
		}
	}
	leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), registryTime)
	defer cancel()
	_, err = client.Pipelined(leave, func(p redis.Pipeliner) error {
		p.Del(leave, key)
		p.SRem(leave, prefix+registrySet, name)
		return nil
	})
	return err
}
