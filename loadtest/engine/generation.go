package engine

import (
	"math/bits"
	"net/http"
	"strconv"
	"strings"
)

// generation is what one request asks of the engine, whatever API it came by.
type generation struct {
	prompts  [][]int32
	scripts  [][]int32 // by prompt: what to say instead of free text; nil: free text
	n        int       // answers to each prompt
	sampling sampling
	adapter  string
	salt     string
	priority float64
	transfer transferParams
	// reportsHits: blocks that it finds cached are reported as stored once more.
	reportsHits bool
	kind        string // "chatcmpl", "cmpl", ...: how internal ids begin
}

// job is the work for one request. Answer i*n+j is the j-th to prompt i.
type job struct {
	rank      *rank
	sequences []*sequence
	out       *answers
	prompts   [][]int32
	n         int
	interval  int          // sampling's
	held      []heldPieces // by answer
}

// heldPieces are those of an answer that wait for more to be sent with.
type heldPieces struct {
	begun  bool // the first was sent
	pieces []piece
}

// begin reads a request, turns it into work by prepare, and starts it. The caller must stop
// the job in the end.
func begin[R any](e *Engine, x *exchange, in *R, prepare func(*exchange, *R) (*generation, error)) (*generation, *job, error) {
	if err := x.decode(in); err != nil {
		return nil, nil, err
	}
	g, err := prepare(x, in)
	if err != nil {
		return nil, nil, err
	}
	j, err := e.start(x, g)
	return g, j, err
}

// start hands the work to a rank. The caller must stop the job in the end.
func (e *Engine) start(x *exchange, g *generation) (*job, error) {
	r := e.pickRank(x.r.Header.Get("X-Data-Parallel-Rank"))
	if x.rank >= 0 {
		r = e.ranks[x.rank]
	}
	if g.transfer.rank != nil {
		r = e.ranks[*g.transfer.rank]
	}
	if r.load().asleep {
		return nil, &apiError{http.StatusServiceUnavailable, "ServiceUnavailableError", "The engine is sleeping.", ""}
	}
	j := &job{rank: r, out: newAnswers(), prompts: g.prompts, n: g.n, interval: g.sampling.interval}
	for i, prompt := range g.prompts {
		limits := g.sampling
		if err := e.checkLength(len(prompt), &limits); err != nil {
			e.releaseUnread(r, g)
			return nil, err
		}
		if context := e.cfg.Connector == ConnectorSGLang || e.cfg.Connector == ConnectorTRTLLM; context && g.transfer.prefillLeg {
			limits.maxTokens, limits.minTokens = 1, 0 // whatever was asked for
		}
		if g.scripts != nil {
			limits.script = g.scripts[i]
		}
		for variant := range g.n {
			limits.variant = variant
			at := len(j.sequences)
			j.sequences = append(j.sequences, &sequence{
				id:           g.kind + "-" + x.id + "-" + strconv.Itoa(at) + "-" + newID("")[:8],
				sampling:     limits,
				adapter:      g.adapter,
				salt:         g.salt,
				priority:     g.priority,
				reportsHits:  g.reportsHits,
				tokens:       prompt,
				handoffOut:   g.transfer.prefillLeg && len(g.transfer.bootstraps) == 0,
				holdName:     g.transfer.name,
				reader:       g.transfer.reader,
				bootstrap:    g.transfer.bootstrapOf(at),
				source:       g.transfer.source,
				answerIn:     g.transfer.answer,
				fetches:      g.transfer.looksUp || g.transfer.source != nil || g.transfer.answer != nil || g.transfer.toFetch() != nil || g.transfer.decodeLeg && len(g.transfer.bootstraps) > 0,
				decodeLeg:    g.transfer.decodeLeg,
				handoffIn:    g.transfer.toFetch(),
				slow:         x.effects.slow,
				dropHandoff:  x.effects.dropHandoff,
				wrongHandoff: x.effects.wrongHandoff,
				out:          j.out,
				at:           at,
			})
		}
	}
	j.held = make([]heldPieces, len(j.sequences))
	if !g.transfer.looksUp && g.transfer.decodeLeg && g.transfer.handoff == nil && len(g.transfer.bootstraps) == 0 {
		r.countRecomputed(recomputeMissing)
	}
	for _, s := range j.sequences {
		if !r.submit(e.life, s) {
			j.stop()
			return nil, r.failure()
		}
	}
	return j, nil
}

// toFetch is the hand-off whose KV is to be fetched. One without blocks, of a prompt
// shorter than a block, leaves nothing to fetch.
func (t transferParams) toFetch() *handoff {
	if t.handoff == nil || len(t.handoff.BlockIDs[0]) == 0 {
		return nil
	}
	return t.handoff
}

// releaseUnread frees the hand-off of a decode leg that is refused before it starts,
// as newer vLLM does.
func (e *Engine) releaseUnread(r *rank, g *generation) {
	h := g.transfer.toFetch()
	if h == nil {
		h = g.transfer.answer
	}
	if h == nil {
		return
	}
	r.abandon(e.life, h, kvPull{EngineID: h.EngineID, RequestID: h.RequestID})
}

// pickRank follows the X-data-parallel-rank header; without one, or with one that is
// no rank, the least loaded rank serves, and equally loaded ones in turn.
func (e *Engine) pickRank(header string) *rank {
	if n, err := strconv.Atoi(strings.TrimSpace(header)); err == nil && n >= 0 && n < len(e.ranks) {
		return e.ranks[n]
	}
	if len(e.ranks) == 1 {
		return e.ranks[0]
	}
	first := int(e.turn.Add(1) % uint64(len(e.ranks)))
	best, bestLoad := e.ranks[first], 1<<(bits.UintSize-2)
	for i := range e.ranks {
		r := e.ranks[(first+i)%len(e.ranks)]
		l := r.load()
		if load := 4*(l.waiting+l.loading) + l.running; load < bestLoad {
			best, bestLoad = r, load
		}
	}
	return best
}

// stop aborts what is not finished.
func (j *job) stop() {
	for _, s := range j.sequences {
		j.rank.abort(s)
	}
}

// each passes on pieces as they come until all answers have ended. It ends early with
// errClientGone, with errInternal when the engine gave up on an answer, or with the
// error of take.
func (j *job) each(x *exchange, take func(piece) error) error {
	for open := len(j.sequences); open > 0; {
		pieces, err := j.out.take(x.r.Context())
		if err != nil {
			return errClientGone
		}
		for _, p := range pieces {
			switch p.finish {
			case finishError, finishAbort:
				return j.rank.failure()
			case finishTransfer:
				return errTransfer
			}
			j.leave(x.r.Context(), p)
			if p.finish != "" {
				open--
			}
			if j.interval <= 1 {
				if err := take(p); err != nil {
					return err
				}
				continue
			}
			for _, p := range j.due(p) {
				if err := take(p); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// due are the pieces that are sent when another one is here: the first and the last of an answer at once, others when
// they are as many as the request wants at a time. Engines send them as one event (vLLM since #49754 of July 2026,
// vllm/sampling_params.py, stream_interval; sglang/srt/sampling/sampling_params.py).
func (j *job) due(p piece) []piece {
	h := &j.held[p.at]
	h.pieces = append(h.pieces, p)
	if h.begun && p.finish == "" && len(h.pieces) < j.interval {
		return nil
	}
	due := h.pieces
	h.begun, h.pieces = true, nil
	return due
}

// answer is a finished answer.
type answer struct {
	reasoning string // before the text
	text      string
	pieces    []piece
	finish    string
	stoppedBy any
}

// collect waits for all answers. A fault may cut the connection first.
func (j *job) collect(x *exchange) ([]answer, error) {
	all := make([]answer, len(j.sequences))
	said := 0
	err := j.each(x, func(p piece) error {
		if said++; x.effects.dies && said > x.effects.dieAfter {
			panic(http.ErrAbortHandler)
		}
		a := &all[p.at]
		if p.reasoning {
			a.reasoning += p.text
		} else {
			a.text += p.text
		}
		a.pieces = append(a.pieces, p)
		a.finish, a.stoppedBy = p.finish, p.stoppedBy
		return nil
	})
	return all, err
}

// tokens of the answer.
func (a *answer) tokens() []int32 {
	ids := make([]int32, len(a.pieces))
	for i, p := range a.pieces {
		ids[i] = p.token
	}
	return ids
}

// handoffOf is what a prefill leg hands over: of its first answer, as there is but one
// place for it. nil: nothing.
func handoffOf(all []answer) *handoff {
	return all[0].pieces[len(all[0].pieces)-1].result
}

// usage in OpenAI's shape.
type usage struct {
	PromptTokens     int            `json:"prompt_tokens"`
	TotalTokens      int            `json:"total_tokens"`
	CompletionTokens int            `json:"completion_tokens"`
	Details          *promptDetails `json:"prompt_tokens_details"`
}

type promptDetails struct {
	CachedTokens int  `json:"cached_tokens"`
	Created      *int `json:"created_cache_tokens,omitempty"` // written to the cache (vLLM 0.32)
}

// usageOf counts prompts once each, as vLLM does. With the setting off there are no
// details, nor before 0.32 without cached tokens. cached is of the last prompt.
func (e *Engine) usageOf(prompts [][]int32, completion, cached int) usage {
	u := usage{CompletionTokens: completion}
	for _, p := range prompts {
		u.PromptTokens += len(p)
	}
	u.TotalTokens = u.PromptTokens + completion
	switch {
	case !e.cfg.CachedTokensInUsage:
	case e.isVLLM(32):
		size := e.cfg.BlockSize
		created := max(0, len(prompts[len(prompts)-1])/size*size-cached)
		u.Details = &promptDetails{cached, &created}
	case cached > 0:
		u.Details = &promptDetails{CachedTokens: cached}
	}
	return u
}

// usageOfAnswers counts finished answers.
func (e *Engine) usageOfAnswers(prompts [][]int32, all []answer) usage {
	completion, cached := 0, 0
	for _, a := range all {
		completion += len(a.pieces)
		cached = a.pieces[len(a.pieces)-1].cached
	}
	return e.usageOf(prompts, completion, cached)
}
