package pd

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd/answerkv"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/address"
)

// The KV of an answer lies on the server that decoded it. Where engines keep it for that
// (vLLM's bidirectional_kv_xfer), the next turn's prefill may read it from there:
//
//  1. decode's legs are asked for token ids, and what comes with an answer's hand-off is remembered
//     (answerKV.record);
//  2. when the next turn is priced, its prompt is looked for among them, once, and reading from
//     there competes with computing on each prefill server (findAnswer, setAnswers);
//  3. whoever is bound first to read it does so (answerKV.take); the prompt goes as the ids that were
//     compared;
//  4. where the read fails, the same server computes the prompt (answerKV.sendPrefill).

// usesAnswers reports whether a server keeps answers' KV, and reads others'.
func (sn *Snapshotter) usesAnswers(s *pools.Server) bool {
	switch sn.Config.AnswerKV {
	case answerkv.All:
		return connector.KeepsAnswers(s)
	case answerkv.Reported:
		return s.Identity().KeepsAnswers && connector.KeepsAnswers(s)
	}
	return false
}

// takesAnswers reports whether answers' KV is used at all.
func (sn *Snapshotter) takesAnswers() bool {
	return sn.Answers != nil && (sn.Config.AnswerKV == answerkv.Reported || sn.Config.AnswerKV == answerkv.All)
}

// answerKey is what the KV of a request depends on beside the tokens, on servers of a class.
func (r *bindRequest) answerKey(class uint64) answerkv.Key {
	k := answerkv.Key{Class: class, Model: r.base, Salt: r.req.Salt}
	if r.req.Model != r.base {
		k.Adapter = r.req.Model
	}
	return k
}

// mayReadAnswer reports whether a request's tokens are known well enough to read KV by them: an
// engine or the client said all of them, and the prompt can be given to prefill as these ids.
func (r *bindRequest) mayReadAnswer() bool {
	p := r.prefix
	if p == nil || r.remote || r.continues || r.req.proxied || r.req.Aggregated || r.req.Answers > 1 {
		return false
	}
	t := &p.tokens
	said := t.By == tokens.ByRequest || t.By == tokens.ByEngine || t.By == tokens.ByTokenize
	return said && t.Complete && t.Certain >= len(t.IDs) && len(t.Media) == 0 && r.req.forTransfer().TakesIDs()
}

// awaitIDs waits for the tokens of a prompt as long as for one of which nothing is known, where a server
// keeps the KV of the turn before: it can be read by all of them alone.
func (sn *Snapshotter) awaitIDs(ctx context.Context, r *bindRequest) {
	later := r.prefix.tokens.Later
	if later == nil || r.prefix.tokens.Before == 0 || !sn.Answers.Expects(r.prefix.tokens.Before) {
		return
	}
	later.Await(ctx)
	sn.takeLater(r)
}

// findAnswer looks once for the answer that a request's prompt goes on behind: it was there before the
// request, or is none of it.
func (sn *Snapshotter) findAnswer(r *bindRequest, v *snapshot, now time.Time) {
	if r.prefix == nil || r.prefix.answerSought || !r.prefix.known {
		return
	}
	r.prefix.answerSought = true
	if !r.mayReadAnswer() {
		return
	}
	var classes []uint64
	for i := range v.candidates.Prefill {
		class := v.candidates.Prefill[i].Class
		if slices.Contains(classes, class) {
			continue
		}
		classes = append(classes, class)
		if a, n := sn.Answers.Find(r.answerKey(class), r.prefix.tokens.IDs, now); n > r.prefix.answerTokens {
			r.prefix.answer, r.prefix.answerTokens = a, n
		}
	}
}

// keeper is the server that keeps an answer, nil where it does not any more.
func (sn *Snapshotter) keeper(a *answerkv.Answer, now time.Time) *pools.Server {
	if a == nil || !sn.Answers.IsThere(a, now) {
		return nil
	}
	for _, s := range sn.Fleet.Servers() {
		if s.ID() == a.Server {
			if s.State() == pools.Alive && s.Incarnation() == a.Incarnation {
				return s
			}
			return nil
		}
	}
	return nil
}

// leastRead is vLLM's kv_recompute_threshold: fewer tokens than that it computes.
const leastRead = 64

// setAnswers offers the KV of the answer that the prompt goes on behind to the prefill servers that can
// read it, where it has more than they do and no third server has as much.
func (sn *Snapshotter) setAnswers(r *bindRequest, v *snapshot, now time.Time) {
	if !v.pulls { // else setRemotes has done so
		for i := range v.candidates.Prefill {
			v.candidates.Prefill[i].Remote = cost.Remote{}
		}
	}
	sn.findAnswer(r, v, now)
	if r.prefix == nil || r.prefix.answer == nil || r.begun != nil {
		return
	}
	from := sn.keeper(r.prefix.answer, now)
	if from == nil {
		return
	}
	place, n := topologyOf(from), r.prefix.answerTokens
	for i, s := range v.prefill {
		c := &v.candidates.Prefill[i]
		if c.Class != from.CompatibilityKey() || s == from || n-c.Cached.GPU < leastRead || n <= c.Remote.Tokens {
			continue
		}
		if !s.ReadsAnswers() || !sn.usesAnswers(s) || s.BlockTokens() != r.prefix.answer.Block {
			continue
		}
		c.Remote = cost.Remote{Server: from.ID(), Tokens: n, Answer: true}
		c.Remote.Latency, c.Remote.PerByte = sn.Links.Estimate(&place, &c.Topology, now)
	}
}

// answerKV is what an orchestrator does with the KV of answers.
type answerKV struct{ *Orchestrator }

// take takes the answer's KV that prefill is to read, if it is still there.
func (o answerKV) take(st *requestState, b *binding, t *connector.Transfer) {
	a := b.reads
	if a == nil || t.First.All { // prefill's one token is no reason to hold KV for decode
		return
	}
	now := time.Now()
	from := o.Binder.keeper(a, now)
	_, hosts, read := connector.AnswerBlocks(a.Handoff)
	if from == nil || !read || !o.areOwnHosts(from, hosts, t.From) || !o.Binder.Answers.Take(a, now) {
		o.recordOutcome(b, answerkv.Late)
		return
	}
	t.Answer = &connector.AnswerKV{Handoff: a.Handoff, IDs: st.bind.prefix.tokens.IDs, Tokens: b.readsTokens, Block: a.Block}
}

// areOwnHosts reports whether all hosts that a hand-off names may be the keeper's own. KV that may be anyone's need not be
// read: it can be computed.
func (o *Orchestrator) areOwnHosts(keeper *pools.Server, hosts []string, reader *pools.Server) bool {
	return !slices.ContainsFunc(hosts, func(host string) bool {
		is := keeper.JudgeHost(host, reader)
		return is != address.Own && (o.Config.StrictHandoffs || is != address.Unknown)
	})
}

// recordOutcome counts what became of the answer's KV that a binding was to read, and keeps it for
// those who ask why.
func (o answerKV) recordOutcome(b *binding, outcome answerkv.Outcome) {
	o.Metrics.countAnswerKV(outcome)
	b.choice.AnswerKV = answerkv.Reading{Server: b.reads.Server, Tokens: b.readsTokens, Outcome: outcome}
}

// recordRead says what came of reading an answer's KV, by the cached tokens that prefill reports.
func (o answerKV) recordRead(b *binding, t *connector.Transfer, found api.Count) {
	switch {
	case t.Answer == nil:
	case found.Known && found.Tokens < t.Answer.Tokens:
		o.recordOutcome(b, answerkv.Computed)
	default:
		o.recordOutcome(b, answerkv.Read)
	}
}

// sendPrefill sends a prefill leg that reads an answer's KV first, and returns its answer. Neither an
// answer nor a failure: there is none to read, or reading failed, and the prompt is to be computed
// there.
func (o answerKV) sendPrefill(ctx context.Context, st *requestState, b *binding, t *connector.Transfer, d *api.Dialect) (answer api.Answer, failed *LegError) {
	if t.Answer == nil {
		return answer, nil
	}
	server := t.From
	patience := min(o.Config.PrefillTimeout, o.Config.AnswerPatience+4*(b.chosen.Terms.Queue+b.chosen.Terms.Prefill))
	_, body, failed := o.sendWhole(ctx, patience, PrefillLeg, server, st, d.Path, t.ID, t.Connector().Prefill(t))
	if failed == nil {
		answer, _ = d.ReadAnswer(body) // empty where it is none
		if status, _ := answer.Failure(); status != 0 {
			answer = api.Answer{}
		}
	}
	switch {
	case answer.IsOfPrefill():
		return answer, nil
	case failed == nil || failed.engineFault() || failed.Kind == Refused: // the read, as likely as the server
	case failed.Kind == Timeout && ctx.Err() == nil:
		server.RecordReadsNoAnswers()
		o.Log.Error("prefill was to read an answer's KV and says nothing; it is asked for no other: is bidirectional_kv_xfer set in its kv_connector_extra_config?",
			"server", server.ID(), "answer_of", b.reads.Server)
	default:
		if failed.Kind != Gone {
			o.recordOutcome(b, answerkv.Failed)
		}
		o.reportFailure(b.prefill, st, b, failed)
		return answer, failed
	}
	o.recordOutcome(b, answerkv.Failed)
	o.Binder.Links.Blame(b.reads.Server, server.ID(), time.Now())
	t.DropAnswer()
	return answer, nil
}

// wantsIDs reports whether the ids of a decode leg's answer are wanted, to compare the next turn
// with: its engine may keep the KV.
func (o answerKV) wantsIDs(st *requestState, b *binding) bool {
	req, server := st.req, b.decode.Server()
	return o.Binder.takesAnswers() && b.handoff.HasKV() && !st.bind.continues && req.Answers <= 1 && !req.Aggregated &&
		o.Binder.usesAnswers(server) && st.client.forTransfer().TakesIDs() && server.BlockTokens() > 0
}

// askForIDs is a leg's body with the wish for token ids; hidden: the client did not ask for them.
func askForIDs(body api.Body) (asks api.Body, hidden bool) {
	if api.AsksForIDs(body) {
		return body, false
	}
	return api.AskForIDs(body), true
}

// recordIDs takes what an event says of the ids of its leg's prompt and answer; nil ids: they are not
// wanted.
func recordIDs(ids *answerkv.IDs, c *api.Chunk) {
	if ids == nil {
		return
	}
	prompt, _ := api.IDList(c.Prompt)
	answer, _ := api.IDList(c.IDs)
	ids.Record(prompt, answer)
}

// idsOf are the ids in a whole answer.
func idsOf(answer []byte) *answerkv.IDs {
	c := api.ReadChunk(answer)
	ids := new(answerkv.IDs)
	if c.Choices != 1 {
		ids.Spoil()
	}
	recordIDs(ids, &c)
	return ids
}

// keptAnswer is what an engine keeps of an answer in blocks of so many tokens, nil where it is not all
// known.
func keptAnswer(handoff []byte, ids *answerkv.IDs, usage api.Usage, block int) *answerkv.Answer {
	blocks, _, ok := connector.AnswerBlocks(handoff)
	if !ok || !usage.Prompt.Known || !usage.Output.Known {
		return nil
	}
	report := answerkv.Report{
		IDs: ids, Prompt: usage.Prompt.Tokens, Output: usage.Output.Tokens,
		Blocks: blocks.Blocks, Tokens: blocks.Tokens, Block: block, Handoff: handoff,
	}
	return report.Answer()
}

// record remembers the KV that an engine keeps of an answer, or counts it as kept for nobody.
func (o answerKV) record(st *requestState, b *binding, handoff []byte, ids *answerkv.IDs, usage api.Usage) {
	server := b.decode.Server()
	a := keptAnswer(handoff, ids, usage, server.BlockTokens())
	if a == nil {
		o.recordRetained(server)
		return
	}
	now := time.Now()
	a.Key, a.Text = st.bind.answerKey(server.CompatibilityKey()), st.bind.prefix.wholeText()
	a.Server, a.Incarnation, a.Until = server.ID(), server.Incarnation(), now.Add(o.Binder.Config.AnswerLife)
	o.Binder.Answers.Add(a, now)
	o.Metrics.countAnswerKV(answerkv.Kept)
}
