package pools

import (
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	orca "github.com/cncf/xds/go/xds/data/orca/v3"

	"github.com/tandem-gateway/tandem/pools/kvroom"
	"github.com/tandem-gateway/tandem/pools/load"
)

// engineLoad is what the engine reports of its load.
type engineLoad struct {
	scraped  atomic.Pointer[load.Load]
	reported atomic.Pointer[load.Load] // by ORCA
	pushed   pushedRanks
	reports  reportCounts  // ORCA
	pushes   reportCounts  // SGLang's pushed load
	maxAge   time.Duration // load older than this is not believed
	// tokenBytes are the bits of the last load.Load.TokenBytes that was known. It does not grow old: an
	// engine that was started anew has moved nothing yet, and most often serves the same model.
	tokenBytes atomic.Uint64
	shared     kvroom.Sharing
}

// reportCounts are how many reports of load came, and how many of them could not be read.
type reportCounts struct{ read, unreadable atomic.Uint64 }

// pushedRanks is what the ranks of an engine pushed last.
type pushedRanks struct {
	mu     sync.Mutex
	byRank []load.Load // zero of one that was not heard yet
}

// take keeps a rank's load, and returns that of all of so many, false while one was not heard for too long.
func (p *pushedRanks) take(rank, of int, l load.Load, maxAge time.Duration) (load.Load, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.byRank) != of {
		p.byRank = make([]load.Load, of)
	}
	p.byRank[rank] = l
	for i := range p.byRank {
		if at := p.byRank[i].At; at.IsZero() || l.At.Sub(at) > maxAge {
			return load.Load{}, false
		}
	}
	return load.SumOfRanks(p.byRank), true
}

// Load returns what the engine reported last; its zero value is all unknown. What an
// answer or a stream reports counts before a scrape that is older, and a
// scrape fills in what they lack.
func (l *engineLoad) Load() load.Load {
	scraped, reported := l.scraped.Load(), l.reported.Load()
	if reported.At.After(scraped.At) {
		return reported.FilledFrom(*scraped, l.maxAge)
	}
	return *scraped
}

// KVBytesPerToken returns the bytes of KV of a token as they cross a link, as the engine reports it or as its
// transfers have shown it; 0: not known.
func (s *Server) KVBytesPerToken() float64 {
	if shown := math.Float64frombits(s.tokenBytes.Load()); shown > 0 {
		return shown
	}
	return s.Identity().TokenBytes
}

// AsksORCA returns the format in which a leg on the server should ask for its load,
// "" where it should not: whichever rank answers, vLLM 0.32 reports those of all ranks in TEXT, without
// their numbers, and that of the last rank in JSON.
func (s *Server) AsksORCA() string {
	if s.Rank != nil {
		return ""
	}
	return s.fleet.cfg.ORCA
}

// RecordORCA takes the load out of an answer's headers. What cannot be read is
// counted, and the load stays as it was.
func (s *Server) RecordORCA(header http.Header, now time.Time) {
	switch report, err := load.ORCAOf(header); {
	case err != nil:
		s.reports.unreadable.Add(1)
	case report != nil:
		s.recordReport(report, now)
	}
}

// recordReport makes a report the load of the server.
func (s *Server) recordReport(report *orca.OrcaLoadReport, now time.Time) {
	load, ok := load.FromORCA(report)
	if !ok {
		s.reports.unreadable.Add(1)
		return
	}
	load.At = now
	s.reported.Store(s.withExternal(load))
	s.countChange()
	s.reports.read.Add(1)
}

// withExternal is a load that the engine told of, with what others than the gateways have sent to it. It shows too how
// much of their KV the prompts in flight share.
func (s *Server) withExternal(l load.Load) *load.Load {
	decodes, prefills := s.InFlight(Decode, l.At), s.InFlight(Prefill, l.At)
	sent := decodes.kvSent(prefills)
	if l.KVUsed.Known && l.KVTokens.Known && l.Running.Known {
		s.shared.Observe(kvroom.Said{
			Used: l.KVUsed.Value * l.KVTokens.Value, Capacity: l.KVTokens.Value, Running: l.Running.Value, Waiting: l.Waiting.Value,
		}, sent, l.At)
	}
	own := prefills.Plus(decodes)
	l.External = l.Beside(own.Requests, own.Tokens)
	l.ExternalRunning = load.Gauge{Value: max(0, l.Running.Value-float64(decodes.Requests)), Known: l.Running.Known}
	l.ExternalKV = l.KVTokensUsed()
	l.ExternalKV.Value = max(0, l.ExternalKV.Value-s.shared.InUse(sent, l.At)-float64(min(sent.Prompts, sent.Computing)))
	return &l
}

// KVFree is how many tokens of KV more the server has room for, beside what is in flight there. False where its engine does
// not say.
func (s *Server) KVFree(prefills, decodes InFlight, l load.Load, now time.Time) (tokens int, known bool) {
	if !l.KVUsed.Known || !l.KVTokens.Known {
		return 0, false
	}
	return s.shared.Free(l.KVTokens.Value, l.ExternalKV.Value, decodes.kvSent(prefills), now), true
}

// RecordPushedLoad takes in the load that one of so many ranks pushed, or that it could not be read.
// It is the server's once all have pushed theirs.
func (s *Server) RecordPushedLoad(rank, of int, pushed load.Load, err error, now time.Time) {
	if err != nil {
		s.pushes.unreadable.Add(1)
		return
	}
	s.pushes.read.Add(1)
	pushed.At = now
	if all, ok := s.pushed.take(rank, of, pushed, s.maxAge); ok {
		s.reported.Store(s.withExternal(all))
		s.countChange()
	}
}
