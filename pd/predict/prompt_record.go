package predict

import (
	"cmp"
	"slices"
	"time"
)

const (
	promptRecords  = 256 // contexts that are reported to other replicas
	reportedPoints = 8   // prompts that are reported of one
)

// PromptRecord is the prompts of one context as they are reported to other replicas: of each what
// a rough count had and what an engine counted. A context is a hash, so that no prompt can be
// read from it.
type PromptRecord struct {
	Model   string   `json:"m"`
	API     string   `json:"a"`
	Context uint64   `json:"c"`
	Count   uint64   `json:"n"` // prompts that engines counted for this replica
	Points  [][2]int `json:"p"` // the latest of them, oldest first: rough tokens, tokens
}

// mostPromptTokens bounds what another program may report of a prompt.
const mostPromptTokens = 1 << 27

func (r *PromptRecord) valid() bool {
	for _, p := range r.Points {
		if min(p[0], p[1]) <= 0 || max(p[0], p[1]) > mostPromptTokens {
			return false
		}
	}
	return len(r.Points) <= reportedPoints && len(r.Model)+len(r.API) < 1024
}

func (r *PromptRecord) key() promptKey { return promptKey{r.Model, r.API, r.Context} }

// Records returns what is reported to others: the contexts that were seen last.
func (p *Prompts) Records(now time.Time) (records []PromptRecord) {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var keys []promptKey
	for key, c := range p.contexts {
		if c.own > 0 && now.Sub(c.seen) < stale {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b promptKey) int {
		return cmp.Or(p.contexts[b].seen.Compare(p.contexts[a].seen), cmp.Compare(a.context, b.context))
	})
	for _, key := range keys[:min(len(keys), promptRecords)] {
		c := p.contexts[key]
		records = append(records, PromptRecord{key.model, key.api, key.context, c.own, c.reported()})
	}
	return records
}

// reported is the latest prompts that were counted here and are remembered, oldest first.
func (c *promptContext) reported() (points [][2]int) {
	for i := range min(c.count, promptPoints) {
		if p := c.points[(c.count-1-i)%promptPoints]; p.own && len(points) < reportedPoints {
			points = append(points, [2]int{p.rough, p.tokens})
		}
	}
	slices.Reverse(points)
	return points
}

// receive takes in what another replica reports of a context: the prompts that it has seen
// since its report before, or all that it names where there was none and nothing is known here.
func (p *Prompts) receive(before *PromptRecord, r *PromptRecord, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	news := uint64(len(r.Points))
	switch {
	case before == nil && p.contexts[r.key()] != nil:
		return
	case before != nil && r.Count >= before.Count: // else it has started anew
		news = min(news, r.Count-before.Count)
	}
	q := Prompt{Model: r.Model, API: r.API, Context: r.Context}
	for _, at := range r.Points[uint64(len(r.Points))-news:] {
		p.learnLocked(&q, promptPoint{rough: at[0], tokens: at[1]}, now)
	}
}

// PromptSync remembers what of one replica's records was taken in, so that of the next only what
// is new is. The zero value is a replica that has reported nothing.
type PromptSync struct {
	records map[promptKey]PromptRecord // without their points
}

// MarkNew is for records that are not the replica's first: of contexts that it reports for the
// first time it has seen everything since the records before.
func (s *PromptSync) MarkNew(records []PromptRecord) {
	for i := range records {
		if _, known := s.records[records[i].key()]; !known {
			s.set(&PromptRecord{Model: records[i].Model, API: records[i].API, Context: records[i].Context})
		}
	}
}

// TakeIn teaches prompts what the replica saw since its records before, and what it names where
// there are none.
func (s *PromptSync) TakeIn(p *Prompts, records []PromptRecord, now time.Time) {
	if p == nil {
		return
	}
	if len(s.records) > 8*promptRecords {
		clear(s.records) // of contexts that are gone, most of them
	}
	for i := range records[:min(len(records), promptRecords)] {
		r := &records[i]
		if !r.valid() {
			continue
		}
		if before, knew := s.records[r.key()]; knew {
			p.receive(&before, r, now)
		} else {
			p.receive(nil, r, now)
		}
		s.set(r)
	}
}

func (s *PromptSync) set(r *PromptRecord) {
	if s.records == nil {
		s.records = make(map[promptKey]PromptRecord)
	}
	kept := *r
	kept.Points = nil
	s.records[r.key()] = kept
}
