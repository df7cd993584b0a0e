package pd

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/predict"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// The keys of what replicas learned, behind the configured prefix; the braces keep them on
// one node of a cluster.
//
//	<prefix>{learned}:of:<id>   what one replica has learned, written by it alone; expires
//	<prefix>{learned}:replicas  sorted set of their ids; expires with the last of them
const (
	learnedKey = "{learned}:of:"
	learnedSet = "{learned}:replicas"
)

// How what is learned travels.
const (
	learnedBeat  = time.Second // between two looks at what the others know, and own writes
	learnedRest  = time.Minute // between two writes while there is no news
	learnedLife  = time.Hour   // of a record; a replica that starts may read its own
	maxLearned   = 4 << 20     // bytes of a record that is read
	maxRecorders = 256         // replicas whose records are read
)

// Experience shares what replicas learn of servers, links and lengths of answers. Each has
// a record of its own and writes no other's: sums of what it saw, and what it believes. The
// others take in by how much the sums have grown, so that each believes what one replica
// would that had seen everything; a replica that starts adopts what the records believe,
// its own former one too. No request waits for Redis; without it each learns by itself.
type Experience struct {
	links   *cost.Links
	outputs *predict.Outputs
	fleet   *pools.Fleet
	client  redis.UniversalClient
	prefix  string
	id      string
	basis   string // of the priors: sums against others say nothing here
	log     *slog.Logger

	begun atomic.Bool       // the records were read once: before that nothing is written
	heard map[string]*heard // by replica
	count atomic.Int64      // of them
	wrote uint64            // samples in the last record written
	next  time.Time         // when the next is due in any case
}

// experienceRecord is what a replica writes.
type experienceRecord struct {
	Basis   string                  `json:"basis"`
	Servers map[string]serverRecord `json:"servers"` // by id
	Links   cost.LinkRecord         `json:"links"`
	Outputs []predict.OutputRecord  `json:"outputs,omitempty"`
}

// serverRecord is the curves of one server.
type serverRecord struct {
	Prefill curve.Report `json:"p"`
	Step    curve.Report `json:"d"`
}

// heard is what one replica told, and what of it was taken in.
type heard struct {
	written time.Time // by our clock
	record  experienceRecord
	news    bool // it has not been taken in yet
	servers map[string]serverRecord
	links   cost.LinkSync
	outputs predict.OutputSync
}

// NewExperience returns the sharing of what is learned under a replica's own id. The
// curves that servers and links are believed to have at first are those of cfg and prior.
func NewExperience(
	links *cost.Links, prior cost.LinkPrior, outputs *predict.Outputs, fleet *pools.Fleet, cfg pools.Config,
	client redis.UniversalClient, prefix, id string, log *slog.Logger,
) *Experience {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, prior, cfg.Prefill, cfg.Step) // a hash takes everything
	return &Experience{
		links: links, outputs: outputs, fleet: fleet, client: client, prefix: prefix, id: id, log: log,
		basis: strconv.FormatUint(h.Sum64(), 16), heard: make(map[string]*heard),
	}
}

// Run shares until the context ends.
func (e *Experience) Run(ctx context.Context) {
	tick := time.NewTicker(learnedBeat)
	defer tick.Stop()
	for {
		if err := e.read(ctx); err != nil {
			e.log.Debug("what other replicas learned was not read", "error", err.Error())
		} else {
			e.begun.Store(true)
		}
		e.takeIn(time.Now())
		if err := e.write(ctx, time.Now()); err != nil {
			e.log.Debug("what was learned was not told", "error", err.Error())
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// write tells what was learned, when there is any news.
func (e *Experience) write(ctx context.Context, now time.Time) error {
	r := e.record(now)
	samples := r.samples()
	if !e.begun.Load() || samples == e.wrote && now.Before(e.next) {
		return nil
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = e.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Set(ctx, e.prefix+learnedKey+e.id, text, learnedLife)
		p.ZAdd(ctx, e.prefix+learnedSet, redis.Z{Member: e.id})
		p.Expire(ctx, e.prefix+learnedSet, learnedLife)
		return nil
	})
	if err == nil {
		e.wrote, e.next = samples, now.Add(learnedRest)
	}
	return err
}

func (e *Experience) record(now time.Time) experienceRecord {
	r := experienceRecord{Basis: e.basis, Servers: make(map[string]serverRecord), Links: e.links.Record(now), Outputs: e.outputs.Records(now)}
	for _, s := range e.fleet.Servers() {
		prefill, step := s.Report(now)
		if prefill.Confidence+step.Confidence > 0 {
			r.Servers[s.ID()] = serverRecord{prefill, step}
		}
	}
	return r
}

// samples counts what the record's replica has seen: the record says something new when
// it has changed.
func (r *experienceRecord) samples() (n uint64) {
	for _, s := range r.Servers {
		n += s.Prefill.Works + s.Step.Works
	}
	n += r.Links.Samples()
	for i := range r.Outputs {
		n += r.Outputs[i].Count
	}
	return n
}

// read fetches the records that were written since the last time.
func (e *Experience) read(ctx context.Context) error {
	ids, err := e.client.ZRange(ctx, e.prefix+learnedSet, 0, maxRecorders-1).Result()
	if err != nil {
		return err
	}
	e.forgetBut(ids)
	left := make(map[string]*redis.DurationCmd, len(ids))
	_, err = e.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, id := range ids {
			if id != e.id || !e.begun.Load() {
				left[id] = p.PTTL(ctx, e.prefix+learnedKey+id)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	now := time.Now()
	for id, ttl := range left {
		if ttl.Val() < 0 { // expired: its replica is long gone
			e.client.ZRem(ctx, e.prefix+learnedSet, id)
			delete(e.heard, id)
			continue
		}
		written := now.Add(ttl.Val() - learnedLife)
		if h := e.heard[id]; h == nil || written.Sub(h.written) > learnedBeat/4 {
			if err := e.fetch(ctx, id, written); err != nil {
				return err
			}
		}
	}
	e.count.Store(int64(len(e.heard)))
	return nil
}

// forgetBut forgets what replicas told that have no record any more: whoever sees first
// that one has expired takes it from the set, and the others never see it.
func (e *Experience) forgetBut(ids []string) {
	maps.DeleteFunc(e.heard, func(id string, _ *heard) bool { return !slices.Contains(ids, id) })
}

// fetch reads one record. One that cannot be read, or starts from other priors, is as
// good as none: others may write to this Redis.
func (e *Experience) fetch(ctx context.Context, id string, written time.Time) error {
	text, err := e.client.Get(ctx, e.prefix+learnedKey+id).Bytes()
	if err != nil {
		return err
	}
	h := e.heard[id]
	if h == nil {
		h = &heard{servers: make(map[string]serverRecord)}
		e.heard[id] = h
	}
	h.written = written
	if r, ok := e.parse(text); ok {
		h.hear(r)
	}
	return nil
}

// hear takes a record. What a replica tells of for the first time, and did not in the
// record before, it has seen since. Servers that it tells of no more are forgotten: their
// sums begin anew.
func (h *heard) hear(r experienceRecord) {
	maps.DeleteFunc(h.servers, func(id string, _ serverRecord) bool {
		_, told := r.Servers[id]
		return !told
	})
	if h.record.Basis != "" {
		for id := range r.Servers {
			_, told := h.record.Servers[id]
			if _, known := h.servers[id]; !told && !known {
				h.servers[id] = serverRecord{}
			}
		}
		h.links.MarkNew(&r.Links)
		h.outputs.MarkNew(r.Outputs)
	}
	h.record, h.news = r, true
}

func (e *Experience) parse(text []byte) (r experienceRecord, ok bool) {
	ok = len(text) <= maxLearned && json.Unmarshal(text, &r) == nil && r.Basis == e.basis
	return r, ok
}

// takeIn learns from the records. Servers that a record knows and this replica does not
// yet are waited for.
func (e *Experience) takeIn(now time.Time) {
	servers := e.fleet.Servers()
	for _, h := range e.heard {
		age := max(0, now.Sub(h.written))
		for _, s := range servers {
			h.takeInServer(s, age, now)
		}
		if h.news {
			h.links.TakeIn(e.links, h.record.Links, age, now)
			h.outputs.TakeIn(e.outputs, h.record.Outputs, now)
			h.news = false
		}
	}
}

func (h *heard) takeInServer(s *pools.Server, age time.Duration, now time.Time) {
	told, known := h.record.Servers[s.ID()]
	before, knew := h.servers[s.ID()]
	if !known || knew && before == told || !told.Prefill.Valid() || !told.Step.Valid() {
		return
	}
	h.servers[s.ID()] = told
	if !knew {
		s.ReceivePrefill(nil, told.Prefill, age, now)
		s.ReceiveStep(nil, told.Step, age, now)
		return
	}
	s.ReceivePrefill(&before.Prefill, told.Prefill, age, now)
	s.ReceiveStep(&before.Step, told.Step, age, now)
}

var learnedDesc = prometheus.NewDesc("tandem_learned_records", "Records of what other replicas, or this one before it was started anew, have learned of servers and links, that are taken in.", nil, nil)

// Describe and Collect make Experience a Prometheus collector.
func (e *Experience) Describe(ch chan<- *prometheus.Desc) { ch <- learnedDesc }

func (e *Experience) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(learnedDesc, prometheus.GaugeValue, float64(e.count.Load()))
}
