package engine

import (
	"net"
	"slices"
	"strconv"
	"time"
)

// State is the ground truth about an engine, for tests: what it is doing, what it
// did, and what it was asked. Counts are since its start.
type State struct {
	EngineID string `json:"engine_id"` // of rank 0
	Role     string `json:"role"`
	Model    string `json:"model"`
	URL      string `json:"url"`
	// KVAddress is where other engines get its KV, "host:port".
	Connector string `json:"connector"`
	KVAddress string `json:"kv_address"`
	ORCA      string `json:"orca"` // address of its load reports; empty: none
	// EventsEndpoints and ReplayEndpoints are the ZMQ addresses by rank, with the
	// ports in use; empty when off.
	EventsEndpoints []string `json:"events_endpoints"`
	ReplayEndpoints []string `json:"replay_endpoints"`

	// Running requests are in the batch; waiting ones include those whose KV is on
	// its way. The server's load is the HTTP requests under way that want the model.
	Running    int  `json:"running"`
	Waiting    int  `json:"waiting"`
	ServerLoad int  `json:"server_load"`
	Sleeping   bool `json:"sleeping"`

	// Prefill side. A hand-off is open until it is pulled, expires with its lease, or
	// is released by a decode that gave up. Rejected pulls are counted by reason, also
	// those whose KV turned out, on the decode side, to be of another prompt.
	HandoffsOpen             int            `json:"handoffs_open"`
	HandoffsPulled           int            `json:"handoffs_pulled"`
	HandoffsExpired          int            `json:"handoffs_expired"`
	HandoffsReleased         int            `json:"handoffs_released"`
	HandoffsRejected         int            `json:"handoffs_rejected"`
	HandoffsRejectedByReason map[string]int `json:"handoffs_rejected_by_reason"`

	// Answers whose KV was kept for a prefill, and those of them that were pulled. One that is not
	// pulled is among the hand-offs that expired or were released.
	AnswersKept   int `json:"answers_kept"`
	AnswersPulled int `json:"answers_pulled"`

	// Decode side. Recomputed counts decode legs that could not use their hand-off and
	// computed the prompt; LoadFailures those that failed for it.
	Recomputed           int            `json:"recomputed"`
	RecomputedByReason   map[string]int `json:"recomputed_by_reason"`
	LoadFailures         int            `json:"load_failures"`
	LoadFailuresByReason map[string]int `json:"load_failures_by_reason"`

	// PrefixBlocksPulled came from a third engine's cache or from a store.
	PrefixBlocksPulled int `json:"prefix_blocks_pulled"`

	KVBlocksUsed  int `json:"kv_blocks_used"`
	KVBlocksTotal int `json:"kv_blocks_total"`

	// Answers made to their end: prefill legs, decode legs (recomputed ones included),
	// and requests without transfer parameters. Each prompt and each of n answers
	// counts. Aborted ones ended early, mostly because their client went away.
	PrefillsDone   int `json:"prefills_done"`
	DecodesDone    int `json:"decodes_done"`
	AggregatedDone int `json:"aggregated_done"`
	Aborted        int `json:"aborted"`
	EngineDeaths   int `json:"engine_deaths"` // by faults, and by hand-offs that are too short
	Preempted      int `json:"preempted"`
	Steps          int `json:"steps"` // of the scheduler
	// LongestStep is how long the longest of them was to take by what it computed, however late the machine was: for
	// as long the streams in its batch stood still.
	LongestStep time.Duration `json:"longest_step_ns"`

	RequestsByPath map[string]int `json:"requests_by_path"`
	Adapters       []string       `json:"adapters"`
	Faults         []Fault        `json:"faults"`
	// Requests are the latest POSTs, oldest first.
	Requests []Request `json:"requests"`
}

// State reports the ground truth.
func (e *Engine) State() State {
	s := State{
		EngineID:                 e.ranks[0].id,
		Role:                     e.cfg.Role,
		Model:                    e.cfg.Model,
		URL:                      e.URL(),
		Connector:                e.cfg.Connector,
		KVAddress:                net.JoinHostPort(e.ranks[0].side.host, strconv.Itoa(e.ranks[0].side.port)),
		ORCA:                     e.reports.address(),
		EventsEndpoints:          []string{},
		ReplayEndpoints:          []string{},
		ServerLoad:               int(e.load.Load()),
		HandoffsRejectedByReason: map[string]int{},
		RecomputedByReason:       map[string]int{},
		LoadFailuresByReason:     map[string]int{},
		Adapters:                 e.adapters.list(),
		Faults:                   e.faults.list(),
	}
	s.Requests, s.RequestsByPath = e.recorder.list()
	for _, r := range e.ranks {
		s.add(r)
		if r.events != nil {
			s.EventsEndpoints = append(s.EventsEndpoints, r.events.eventsAt)
			s.ReplayEndpoints = append(s.ReplayEndpoints, r.events.replayAt)
		}
	}
	return s
}

// add one rank's numbers.
func (s *State) add(r *rank) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Running += len(r.running)
	s.Waiting += len(r.waiting) + len(r.loading)
	s.Sleeping = r.asleep
	s.HandoffsOpen += len(r.held.open)
	for _, m := range r.sessions {
		if m.prefill == nil {
			continue
		}
		s.HandoffsOpen++
		if m.prefill.state == expecting {
			s.Waiting++
		}
	}
	s.KVBlocksUsed += r.cache.used()
	s.KVBlocksTotal += r.cache.total()
	c := r.counts
	s.HandoffsPulled += c.handoffsPulled
	s.AnswersKept += c.answersKept
	s.AnswersPulled += c.answersPulled
	s.PrefixBlocksPulled += c.prefixPulled
	s.HandoffsExpired += c.handoffsExpired
	s.HandoffsReleased += c.handoffsReleased
	s.PrefillsDone += c.prefills
	s.DecodesDone += c.decodes
	s.AggregatedDone += c.aggregated
	s.Aborted += c.aborted
	s.Preempted += c.preempted
	s.Steps += c.steps
	s.LongestStep = max(s.LongestStep, c.longestStep)
	s.EngineDeaths += c.deaths
	s.HandoffsRejected += addTo(s.HandoffsRejectedByReason, c.rejected)
	s.Recomputed += addTo(s.RecomputedByReason, c.recomputed)
	s.LoadFailures += addTo(s.LoadFailuresByReason, c.loadFailures)
}

// addTo adds counts by reason and returns their sum.
func addTo(to, from map[string]int) (sum int) {
	for reason, n := range from {
		to[reason] += n
		sum += n
	}
	return sum
}

// Block is one reusable block of an engine's KV cache. Hash and Parent are as KV
// events carry them; a first block has the engine's root hash as parent.
type Block struct {
	Rank    int     `json:"rank"`
	Hash    uint64  `json:"hash"`
	Parent  uint64  `json:"parent"`
	Tokens  []int32 `json:"tokens,omitempty"`
	Adapter string  `json:"adapter,omitempty"`
	Salt    string  `json:"salt,omitempty"`
	First   bool    `json:"first,omitempty"`
}

// Blocks lists the reusable blocks held now, each hash once for each rank, sorted by
// rank and hash.
func (e *Engine) Blocks() []Block {
	all := []Block{}
	for _, r := range e.ranks {
		r.mu.Lock()
		for hash, same := range r.cache.index {
			b := same[0]
			all = append(all, Block{
				Rank: r.index, Hash: hash.number(), Parent: b.parent.number(),
				Tokens: slices.Clone(b.tokens), Adapter: b.adapter, Salt: b.salt, First: b.parent == r.cache.root,
			})
		}
		r.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b Block) int {
		if a.Rank != b.Rank {
			return a.Rank - b.Rank
		}
		if a.Hash < b.Hash {
			return -1
		}
		return 1
	})
	return all
}
