package pools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// Servers may register themselves in Redis. The keys begin with the configured prefix:
//
//	<prefix>servers       set of names
//	<prefix>server:<name> the server as JSON (Entry), with a TTL
//
// A name is anything unique, such as host:port. Whoever starts an engine can write
// them, again and again before the TTL ends:
//
//	redis-cli SET tandem:server:10.0.0.1:8000 '{"url":"http://10.0.0.1:8000","role":"prefill"}' EX 10
//	redis-cli SADD tandem:servers 10.0.0.1:8000
const (
	registrySet = "servers"
	registryKey = "server:"
)

const (
	registryInterval = 300 * time.Millisecond // between two looks
	registryTime     = time.Second            // for one look
	maxRegistered    = 4096
	maxRecord        = 16 << 10 // bytes
)

// Registry finds the servers that registered themselves. While Redis is away those
// that were known stay.
type Registry struct {
	client redis.UniversalClient
	prefix string
	found  func([]Spec)
	log    *slog.Logger

	told  []Spec
	bad   map[string]bool // names whose records are unusable, and said to be
	lost  bool            // Redis is away, and said to be
	asked bool            // it has been read once
}

// NewRegistry returns a source of servers; found is told all of them whenever they
// change.
func NewRegistry(client redis.UniversalClient, prefix string, found func([]Spec), log *slog.Logger) *Registry {
	return &Registry{client: client, prefix: prefix, found: found, log: log, bad: make(map[string]bool)}
}

// Run looks until the context ends.
func (r *Registry) Run(ctx context.Context) {
	for ctx.Err() == nil {
		specs, err := r.look(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !r.lost:
			r.lost = true
			r.log.Warn("registry not readable, the servers known from it stay", "error", err.Error())
		case err == nil:
			r.lost = false
			if !reflect.DeepEqual(specs, r.told) || !r.asked {
				r.told, r.asked = specs, true
				r.found(specs)
			}
		}
		Pause(ctx, registryInterval)
	}
}

// look reads all records. Names whose record has expired are taken out of the set; one
// that registers again just then is back with its next beat.
func (r *Registry) look(ctx context.Context) ([]Spec, error) {
	ctx, cancel := context.WithTimeout(ctx, registryTime)
	defer cancel()
	names, err := r.client.SRandMemberN(ctx, r.prefix+registrySet, maxRegistered).Result()
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	records := make([]*redis.StringCmd, len(names))
	_, err = r.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, name := range names {
			records[i] = p.GetRange(ctx, r.prefix+registryKey+name, 0, maxRecord)
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	var specs []Spec
	for i, name := range names {
		record := records[i].Val()
		if record == "" {
			r.client.SRem(ctx, r.prefix+registrySet, name)
			delete(r.bad, name)
			continue
		}
		if spec, ok := r.read(name, record); ok && !slices.ContainsFunc(specs, func(o Spec) bool { return o.ID() == spec.ID() }) {
			specs = append(specs, spec)
		}
	}
	return specs, nil
}

// read turns a record into a server, false if it is of no use: said once.
func (r *Registry) read(name, record string) (Spec, bool) {
	spec, err := parseRecord([]byte(record))
	if err == nil {
		delete(r.bad, name)
		return spec, true
	}
	if !r.bad[name] && len(r.bad) < maxRegistered {
		r.bad[name] = true
		r.log.Error("a server registered itself in a way that is of no use", "name", name, "error", err.Error())
	}
	return Spec{}, false
}

func parseRecord(record []byte) (Spec, error) {
	if len(record) > maxRecord {
		return Spec{}, fmt.Errorf("longer than %d bytes", maxRecord)
	}
	var e Entry
	if err := json.Unmarshal(record, &e); err != nil {
		return Spec{}, err
	}
	role, err := ParseRole(e.Role)
	if err != nil {
		return Spec{}, err
	}
	spec := e.Spec(role)
	return spec, spec.Validate()
}

// Register keeps a server registered until the context ends, and then takes it out.
// It is for those who start engines; see tandem register.
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
	for registered, told := false, false; ctx.Err() == nil; Pause(ctx, ttl/4) {
		_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
			p.Set(ctx, key, record, ttl)
			p.SAdd(ctx, prefix+registrySet, name)
			return nil
		})
		if ok := err == nil; (ok != registered || !told) && ctx.Err() == nil {
			registered, told = ok, true
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
