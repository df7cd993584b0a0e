package pd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/decision"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pd/retry"
	"github.com/tandem-gateway/tandem/pd/scalefromzero"
	"github.com/tandem-gateway/tandem/pd/spans"
	"github.com/tandem-gateway/tandem/pd/transcript"
)

// requestState is what the attempts at one request have come to. It belongs to the goroutine
// that serves the request, and then to the one that reads its stream.
type requestState struct {
	client  *Request     // as it came: what the quarantine knows it by, and what is remembered of it
	req     *Request     // what the legs are sent
	form    answerForm   // how the answer is read and relayed
	entry   *queue.Entry // nil: it continues a stream
	arrived time.Time
	span    spans.Root
	bind    bindRequest

	bindings    []*binding        // one for each attempt
	firstOfThem [1]*binding       // where the first lies, which mostly is all
	earlier     []decision.Choice // of the legs that a stream had before
	boundAt     time.Time
	hits        hits // of the prompt, on the server that was chosen to compute it
	last        *LegError
	lastHandoff *connector.Handoff // of the last decode leg, nil without one
	servedBy    string             // the decode server of the last answer
	retrying    retrying           // what it is looking for another server for
	// retryWithoutBudget is set when the failure was expected and is not the server's.
	retryWithoutBudget bool

	transcript    *transcript.Transcript // nil where a stream cannot be continued
	notContinued  error                  // why it cannot, nil where the request is no stream or continuing is turned off
	continuations int                    // how often its stream was continued
	begun         []byte                 // the events of its stream that prefill's token makes
	decision      decision.Number        // as it is remembered; 0: it is not
	packed        bool                   // the decision was
	held          int                    // bytes that are counted for the choices of bindings

	memory TextMemory // of the client's text, until it is given back; nil: it is not

	capacity scalefromzero.Wait // for servers that are started for it
	streams  bool               // its stream gives its servers and its place back
	whole    bool               // its whole answer is given away

	room *requestRoom // that it lies in; nil: in some that does not come back
}

// requestRoom is what a request is served in, with its first binding: two and a half kilobytes, which come back
// for another request where nobody else has seen them.
type requestRoom struct {
	state   requestState
	binding binding
}

var requestRooms = sync.Pool{New: func() any { return new(requestRoom) }}

// newRequestState is the state of a request that has just been let in.
func newRequestState() *requestState {
	room := requestRooms.Get().(*requestRoom)
	room.state.room, room.state.bind.room = room, &room.binding
	return &room.state
}

// keepRoom has the room not come back: what runs beside the request, and may outlast it, uses it too.
func (st *requestState) keepRoom() { st.room = nil }

// giveRoomBack lets another request have the room of one that has ended, where that went straight to its whole answer.
// After anything else somebody may still read it: a leg of an attempt before, and of a prompt in pieces the decider.
func (st *requestState) giveRoomBack() {
	room := st.room
	if room == nil || !st.whole || st.last != nil || len(st.bindings) != 1 || st.bindings[0] != &room.binding || room.binding.cut.done > 0 {
		return
	}
	candidates := room.binding.candidates
	if !st.packed { // the decision has them
		candidates = cost.Room{}
	}
	*room = requestRoom{}
	room.binding.candidates = candidates
	requestRooms.Put(room)
}

// continuation is the state of a request for the rest of this one's stream. The servers on
// which that broke come last.
func (st *requestState) continuation(rest *Request) *requestState {
	broken := st.bindings[len(st.bindings)-1]
	next := &requestState{
		client: st.client, req: rest, form: st.form, arrived: st.arrived, span: st.span, earlier: st.appendChoices(nil), transcript: st.transcript, continuations: st.continuations + 1, decision: st.decision,
		bind: bindRequest{req: rest, base: st.bind.base, arrived: st.arrived, continues: true},
	}
	next.bind.cause = spans.CauseOf(spans.Continuation, broken.span.Context(), string(DecodeLeg), st.servedBy, "broken_stream")
	next.bind.tried.mustAggregate = rest.Aggregated
	next.bind.tried.broke = append(slices.Clone(st.bind.tried.broke), st.servedBy)
	return next
}

// recordBinding keeps the servers of an attempt.
func (st *requestState) recordBinding(b *binding) {
	if st.bindings == nil {
		st.bindings = st.firstOfThem[:0]
	}
	st.bindings, st.boundAt = append(st.bindings, b), time.Now()
	if b.handoff == nil {
		st.hits = b.hits
	}
}

// appendChoices appends why the request went where it did, the last one last.
func (st *requestState) appendChoices(to []decision.Choice) []decision.Choice {
	to = append(to, st.earlier...)
	for _, b := range st.bindings {
		to = append(to, b.choice)
	}
	return to
}

// choicesPool has room for the choices of a request while they are recorded, of which nothing is kept.
var choicesPool = sync.Pool{New: func() any { return new([]decision.Choice) }}

// firstChoice is what its servers were chosen from when it came, nil before that.
func (st *requestState) firstChoice() *decision.Choice {
	if len(st.bindings) == 0 {
		return nil
	}
	return &st.bindings[0].choice
}

// recordFailure keeps what a failed leg means for the next attempt.
func (st *requestState) recordFailure(e *LegError) {
	st.last = e
	if n := len(st.bindings); n > 0 {
		st.bindings[n-1].choice.Outcome = outcomeOf(e)
	}
	st.bind.tried.record(e, st.req.ForcedTool)
	st.bind.cause = spans.CauseOf(spans.Retry, e.span, string(e.Leg), e.Server, string(e.Kind))
	if e.Leg == PrefillLeg && st.req.ForcedTool && e.Status == http.StatusInternalServerError {
		st.retryWithoutBudget = true
	}
}

// causeOfDeath says how a server died of the request, as far as that is known.
func (st *requestState) causeOfDeath(failed *LegError) retry.Death {
	d := retry.Death{Server: failed.Server, Cause: "it was prefilling", Sent: st.boundAt}
	switch {
	case failed.Leg == PrefillLeg:
	case failed.Leg == AggregatedLeg || !st.lastHandoff.HasKV():
		d.Cause = "it was computing the prompt and decoding"
	case st.lastHandoff.SharesIDs:
		d.Cause, d.Handoff = fmt.Sprintf("it was loading a hand-off of %s, with the token ids of it", st.lastHandoff.From.ID()), true
	default:
		d.Cause, d.Handoff = fmt.Sprintf("it was loading a hand-off of %s, of %d tokens: a prompt that has more KV blocks on decode ends vLLM's engine. "+
			"Do both servers have the same chat template and tokenizer?", st.lastHandoff.From.ID(), st.lastHandoff.Coverage().Prompt), true
	}
	return d
}

// dropText lets go of the client's text once its stream is open: what the transcript keeps is all that may
// be sent again. A leg that is under way has its own.
func (st *requestState) dropText() {
	if st.transcript != nil && st.transcript.NeedsText() {
		return
	}
	st.client.Fingerprint() // which is made of the text
	client := st.client.withoutText()
	req := client
	if st.req != st.client {
		req = st.req.withoutText()
	}
	if st.transcript != nil {
		st.transcript.DropText(client.Body)
	}
	st.client, st.req, st.bind.req = client, req, req
	for _, b := range st.bindings {
		b.handoff.DropLeg()
		b.prefillSaid.Release()
		b.prefillSaid = nil
	}
	if p := st.bind.prefix; p != nil {
		p.prompt.Body, p.prompt.Long = nil, nil
		if len(p.tokens.IDs) > 0 {
			p.text, p.tokens.Text = nil, nil
			p.tokens.DropIDs() // what is left of a stream that breaks is placed by the ids of its continuation
		}
		if !st.teachesStore() {
			p.hits = kvstate.Hits{}
		}
	}
	st.releaseText()
}

// beside is the request for a leg in another goroutine, while the text may be let go of here. The leg calls release when it
// has ended.
func (st *requestState) beside() (own *requestState, release func()) {
	st.keepRoom()
	leg := *st
	if leg.bind.prefix.teaches() {
		prefix := *leg.bind.prefix
		leg.bind.prefix = &prefix
	}
	return &leg, st.holdText()
}

// release gives back whatever servers are still held.
func (st *requestState) release() {
	for _, b := range st.bindings {
		b.release()
	}
}

// retrying is a retry that has been taken out of the budget, and not been made: no other server is found yet.
type retrying struct {
	failed *LegError   // nil: there is none
	taken  retry.Taken // its zero value: none out of the budget
}

// lastErrorOr returns the last leg's error where there was one: it says more to
// the client than that no server is left.
func (st *requestState) lastErrorOr(err error) error {
	if st.last != nil && !errors.Is(err, context.Canceled) { // nobody is told when the client has left
		return st.last
	}
	return err
}

// predictedCache is how many of the prompt's tokens the server that prefilled held, and how many
// were computed, one at least, as predicted when the last pair was chosen.
func (st *requestState) predictedCache() (held, computed int) {
	if len(st.bindings) == 0 {
		return 0, st.req.PromptTokens
	}
	return st.bindings[len(st.bindings)-1].choice.PredictedCache()
}

// keyAgeing is how much shorter a second of waiting makes a prompt look to an engine that
// schedules by priority, in seconds of prefill.
const keyAgeing = 0.05

// priority is the order of service as an engine's static key, lower first: when the
// request arrived, and its predicted prefill, of which a second weighs as much as 20 of
// waiting. So a short prompt passes long ones that came before, but none for ever. It is
// the wall clock's milliseconds, so that replicas agree as far as their clocks do.
func priority(arrived time.Time, prefill time.Duration) int64 {
	return arrived.Add(time.Duration(float64(prefill) / keyAgeing)).UnixMilli()
}

// setPriority writes the key into the request, for both legs. Clients' own never come here.
func (st *requestState) setPriority(b *binding) {
	key := connector.Priority(b.decode.Server(), st.req.Dialect, priority(st.bind.arrived, b.chosen.Terms.Prefill))
	ranked := *st.req
	if key == nil { // that of an attempt on another engine may be there
		ranked.Body = st.req.Body.With(api.Remove("priority"))
	} else {
		ranked.Body = st.req.Body.With(api.Set("priority", key))
	}
	st.req = &ranked
}
