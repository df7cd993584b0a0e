// Package modelsync shares what replicas learn, through Redis: how fast servers and links are, how
// long answers and prompts are, and in which contexts the translation of prompts was wrong. pd and
// pools learn; cmd gives a Sync what they learn into, and runs it.
package modelsync

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

	"github.com/tandem-gateway/tandem/kvstate/tokens"
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

// Learned is what is shared: that into which a replica learns.
type Learned struct {
	Fleet        *pools.Fleet
	Links        *cost.Links
	Outputs      *predict.Outputs
	Prompts      *predict.Prompts
	Translations Translations
}

// Translations knows, by base model, the contexts in which the translation of prompts was found
// wrong.
type Translations interface {
	Disproved(now time.Time) map[string][]tokens.Disproved
	// ReceiveDisproved takes in what another replica reported so long ago. It is said again and
	// again.
	ReceiveDisproved(reported map[string][]tokens.Disproved, age time.Duration, now time.Time)
}

// Sync shares what replicas learn of servers, links, lengths of answers and prompts, and of
// contexts in which the translation of prompts was wrong. Each has a record of its own and
// writes no other's: sums of what it saw, and what it believes. The others take in by how much
// the sums have grown, so that each believes what one replica would that had seen everything; a
// replica that starts adopts what the records believe, its own former one too. No request waits
// for Redis; without it each learns by itself.
type Sync struct {
	learned Learned
	client  redis.UniversalClient
	prefix  string
	id      string
	basis   string // of the priors: sums against others say nothing here
	log     *slog.Logger

	begun    atomic.Bool                // the records were read once: before that nothing is written
	received map[string]*receivedRecord // by replica
	count    atomic.Int64               // of them
	wrote    uint64                     // samples in the last record written
	next     time.Time                  // when the next is due in any case
}

// record is what a replica writes.
type record struct {
	Basis   string                  `json:"basis"`
	Servers map[string]serverRecord `json:"servers"` // by id
	Links   cost.LinkRecord         `json:"links"`
	Outputs []predict.OutputRecord  `json:"outputs,omitempty"`
	Prompts []predict.PromptRecord  `json:"prompts,omitempty"`

	Disproved map[string][]tokens.Disproved `json:"disproved,omitempty"` // by base model
}

// serverRecord is the curves of one server.
type serverRecord struct {
	Prefill curve.Report `json:"p"`
	Step    curve.Report `json:"d"`
}

// receivedRecord is what one replica reported, and what of it was taken in.
type receivedRecord struct {
	written time.Time // by our clock
	record  record
	news    bool // it has not been taken in yet
	servers map[string]serverRecord
	links   cost.LinkSync
	outputs predict.OutputSync
	prompts predict.PromptSync
}

// New returns the sharing of what is learned under a replica's own id. The
// curves that servers and links are believed to have at first are those of cfg and prior.
func New(
	learned Learned, prior cost.LinkPrior, cfg pools.Config, client redis.UniversalClient, prefix, id string, log *slog.Logger,
) *Sync {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, prior, cfg.Prefill, cfg.Step) // a hash takes everything
	return &Sync{
		learned: learned, client: client, prefix: prefix, id: id, log: log,
		basis: strconv.FormatUint(h.Sum64(), 16), received: make(map[string]*receivedRecord),
	}
}

// Run shares until the context ends.
func (m *Sync) Run(ctx context.Context) {
	tick := time.NewTicker(learnedBeat)
	defer tick.Stop()
	for {
		if err := m.read(ctx); err != nil {
			m.log.Debug("what other replicas learned was not read", "error", err.Error())
		} else {
			m.begun.Store(true)
		}
		m.takeIn(time.Now())
		if err := m.write(ctx, time.Now()); err != nil {
			m.log.Debug("what was learned was not reported", "error", err.Error())
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// write reports what was learned, when there is any news.
func (m *Sync) write(ctx context.Context, now time.Time) error {
	r := m.newRecord(now)
	samples := r.samples()
	if !m.begun.Load() || samples == m.wrote && now.Before(m.next) {
		return nil
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = m.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Set(ctx, m.prefix+learnedKey+m.id, text, learnedLife)
		p.ZAdd(ctx, m.prefix+learnedSet, redis.Z{Member: m.id})
		p.Expire(ctx, m.prefix+learnedSet, learnedLife)
		return nil
	})
	if err == nil {
		m.wrote, m.next = samples, now.Add(learnedRest)
	}
	return err
}

func (m *Sync) newRecord(now time.Time) record {
	r := record{
		Basis: m.basis, Servers: make(map[string]serverRecord), Links: m.learned.Links.Record(now), Outputs: m.learned.Outputs.Records(now),
		Prompts: m.learned.Prompts.Records(now), Disproved: m.learned.Translations.Disproved(now),
	}
	for _, s := range m.learned.Fleet.Servers() {
		prefill, step := s.Report(now)
		if prefill.Confidence+step.Confidence > 0 {
			r.Servers[s.ID()] = serverRecord{prefill, step}
		}
	}
	return r
}

// samples counts what the record's replica has seen: the record says something new when
// it has changed.
func (r *record) samples() (n uint64) {
	for _, s := range r.Servers {
		n += s.Prefill.Works + s.Step.Works
	}
	n += r.Links.Samples()
	for i := range r.Outputs {
		n += r.Outputs[i].Count
	}
	for i := range r.Prompts {
		n += r.Prompts[i].Count
	}
	for _, contexts := range r.Disproved {
		for i := range contexts {
			n += uint64(contexts[i].Times)
		}
	}
	return n
}

// read fetches the records that were written since the last time.
func (m *Sync) read(ctx context.Context) error {
	ids, err := m.client.ZRange(ctx, m.prefix+learnedSet, 0, maxRecorders-1).Result()
	if err != nil {
		return err
	}
	m.forgetAllBut(ids)
	left := make(map[string]*redis.DurationCmd, len(ids))
	asked := time.Now()
	_, err = m.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, id := range ids {
			if id != m.id || !m.begun.Load() {
				left[id] = p.PTTL(ctx, m.prefix+learnedKey+id)
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
			m.client.ZRem(ctx, m.prefix+learnedSet, id)
			delete(m.received, id)
			continue
		}
		// It was written between these two times, which are far apart where Redis, or this machine, was
		// slow. One that may be newer than the last one read is read: it may be the last with news.
		earliest, latest := asked.Add(ttl.Val()-learnedLife), now.Add(ttl.Val()-learnedLife)
		if h := m.received[id]; h == nil || latest.Sub(h.written) > learnedBeat/4 {
			if err := m.fetch(ctx, id, earliest); err != nil {
				return err
			}
		}
	}
	m.count.Store(int64(len(m.received)))
	return nil
}

// forgetAllBut forgets what replicas reported that have no record any more: the replica that
// sees first that one has expired takes it from the set, and the others never see it.
func (m *Sync) forgetAllBut(ids []string) {
	maps.DeleteFunc(m.received, func(id string, _ *receivedRecord) bool { return !slices.Contains(ids, id) })
}

// fetch reads one record. One that cannot be read, or starts from other priors, is as
// good as none: others may write to this Redis.
func (m *Sync) fetch(ctx context.Context, id string, written time.Time) error {
	text, err := m.client.Get(ctx, m.prefix+learnedKey+id).Bytes()
	if err != nil {
		return err
	}
	h := m.received[id]
	if h == nil {
		h = &receivedRecord{servers: make(map[string]serverRecord)}
		m.received[id] = h
	}
	h.written = written
	if r, ok := m.parse(text); ok {
		h.receive(r)
	}
	return nil
}

// receive takes a record. What a replica reports for the first time, and did not in the
// record before, it has seen since. Servers that it reports no more are forgotten: their
// sums begin anew.
func (h *receivedRecord) receive(r record) {
	maps.DeleteFunc(h.servers, func(id string, _ serverRecord) bool {
		_, reported := r.Servers[id]
		return !reported
	})
	if h.record.Basis != "" {
		for id := range r.Servers {
			if _, reported := h.record.Servers[id]; !reported {
				h.servers[id] = serverRecord{}
			}
		}
		h.links.MarkNew(&r.Links)
		h.outputs.MarkNew(r.Outputs)
		h.prompts.MarkNew(r.Prompts)
	}
	h.record, h.news = r, true
}

func (m *Sync) parse(text []byte) (r record, ok bool) {
	ok = len(text) <= maxLearned && json.Unmarshal(text, &r) == nil && r.Basis == m.basis
	return r, ok
}

// takeIn learns from the records. Servers that a record knows and this replica does not
// yet are waited for.
func (m *Sync) takeIn(now time.Time) {
	servers := m.learned.Fleet.Servers()
	for _, h := range m.received {
		age := max(0, now.Sub(h.written))
		m.learned.Translations.ReceiveDisproved(h.record.Disproved, age, now)
		for _, s := range servers {
			h.takeInServer(s, age, now)
		}
		if h.news {
			h.links.TakeIn(m.learned.Links, h.record.Links, age, now)
			h.outputs.TakeIn(m.learned.Outputs, h.record.Outputs, now)
			h.prompts.TakeIn(m.learned.Prompts, h.record.Prompts, now)
			h.news = false
		}
	}
}

func (h *receivedRecord) takeInServer(s *pools.Server, age time.Duration, now time.Time) {
	report, known := h.record.Servers[s.ID()]
	before, knew := h.servers[s.ID()]
	if !known || knew && before == report || !report.Prefill.Valid() || !report.Step.Valid() {
		return
	}
	h.servers[s.ID()] = report
	if !knew {
		s.ReceivePrefill(nil, report.Prefill, age, now)
		s.ReceiveStep(nil, report.Step, age, now)
		return
	}
	s.ReceivePrefill(&before.Prefill, report.Prefill, age, now)
	s.ReceiveStep(&before.Step, report.Step, age, now)
}

var learnedDesc = prometheus.NewDesc("tandem_learned_records", "Records of what other replicas, or this one before it was started anew, have learned of servers and links, that are taken in.", nil, nil)

// Describe and Collect make Sync a Prometheus collector.
func (m *Sync) Describe(ch chan<- *prometheus.Desc) { ch <- learnedDesc }

func (m *Sync) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(learnedDesc, prometheus.GaugeValue, float64(m.count.Load()))
}
