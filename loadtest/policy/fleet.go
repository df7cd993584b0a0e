package policy

import (
	"cmp"
	"strconv"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/cached"
	"github.com/tandem-gateway/tandem/kvstate/ghost"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pd/predict"
	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/kvroom"
)

// fleet is how the gateway's own code sees the servers and a request: the adapter
// between View and pd. It is the only file that fills what pd chooses from.
type fleet struct {
	model       cost.Model
	links       *cost.Links
	told        *cost.Links // as before any transfer
	field       cost.Candidates
	sharing     []kvroom.Sharing // of decode servers
	servers     order.Servers
	firstGap    predict.FirstGap
	aggregated  bool            // decode servers may compute prompts
	cuts        bool            // and do so in pieces
	gap         float64         // objective for gaps, seconds; 0: the scenario's
	fetches     bool            // prefill servers fetch KV from decode servers
	protects    bool            // the caches of some of these are protected from new prompts
	ghosts      ghost.Memory    // prompts that came before
	unseenStore bool            // what the store has is not known
	serves      order.Objective // for throughput it has the objective of the first token, too
	moving      map[*job]*cost.Transfer
	expected    map[*job]*cost.ExpectedTransfer
	linksAt     float64 // when what is believed of the links was written; negative: it has changed since
}

// engineBlock is a KV block of an engine, in tokens (vLLM's default): the simulator's own blocks are
// those of the traces.
const engineBlock = 16

func newFleet(s *Scenario, aggregated bool) *fleet {
	h := &s.Hardware
	f := &fleet{aggregated: aggregated, sharing: make([]kvroom.Sharing, s.Decode), linksAt: -1, moving: make(map[*job]*cost.Transfer), expected: make(map[*job]*cost.ExpectedTransfer), model: cost.Default()}
	f.model.HandOff, f.model.KVBytesPerToken = runDuration(s.handOff()), int(h.KVBytesPerToken)
	f.model.BlockTokens, f.model.ChunkTokens, f.model.StepTokens = blockTokens, h.DecodeTokens, h.PrefillTokens
	if s.Store != nil {
		f.model.DiskLoad = s.Store.BytesPerSecond
	}
	prior := cost.LinkPrior{
		cost.SameHost: {BytesPerSecond: h.NIC * s.LinksTold},
		cost.SameRack: {BytesPerSecond: h.NIC * s.LinksTold},
		cost.SameZone: {BytesPerSecond: s.across() * s.LinksTold},
		cost.Far:      {BytesPerSecond: s.across() * s.LinksTold},
	}
	f.links, f.told = cost.NewLinks(prior), cost.NewLinks(prior)
	firstBlock := 0
	if s.firstFromPrefill() {
		firstBlock = blockTokens
	}
	for p := range s.Prefill {
		f.field.Prefill = append(f.field.Prefill, cost.Candidate{ID: strconv.Itoa(p), Topology: place(s.prefillRack(p)), FirstBlock: firstBlock, FetchBlock: blockTokens})
	}
	for d := range s.Decode {
		c := cost.Candidate{
			ID: strconv.Itoa(d), Topology: place(s.decodeRack(d)), KVKnown: true, NoAggregated: !aggregated, FirstBlock: firstBlock, FetchBlock: blockTokens,
			Prefill: prefillCurve(h, 1), PieceBlock: engineBlock,
			Step: curve.Curve{h.DecodeBase, h.DecodePerSequence, 1e6 * h.DecodePerContext},
		}
		if s.LockstepRanks > 1 {
			c.Group = 1 + d/s.LockstepRanks
		}
		f.field.Decode = append(f.field.Decode, c)
	}
	f.field.Links = new(order.LinkTable)
	return f
}

func place(rack int) cost.Topology { return cost.Topology{Zone: "z", Rack: strconv.Itoa(rack)} }

// prefillCurve is the hardware's prefill in the features of curve.PrefillFeatures.
func prefillCurve(h *Hardware, speed float64) curve.Curve {
	return curve.Curve{
		speed * (h.PrefillBase + h.PrefillStep),
		speed * 1e3 * h.PrefillPerToken / h.PrefillRate,
		speed * 1e6 * h.PrefillPerSquare / h.PrefillRate,
	}
}

// refresh takes over the state of the servers.
func (f *fleet) refresh(v *View) {
	now := clockTime(v.now)
	for p := range f.field.Prefill {
		c := &f.field.Prefill[p]
		c.Queue, c.Forming, c.Queued = runDuration(v.QueueSeconds(p)), v.gateway.account.prefill[p].work.Forming(), v.PrefillRequests(p)
		c.Rest = v.gateway.account.prefill[p].work.Rest()
		c.Prefill = prefillCurve(v.prefillHardware(p), v.gateway.learned.speeds[p].mean())
	}
	for d := range f.field.Decode {
		c := &f.field.Decode[d]
		c.Running, c.KVUsed = v.DecodeRequests(d), v.DecodeUsed(d)
		c.Queue = v.gateway.account.decode[d].prompts.Ahead(now)
		c.KVFree = f.kvFree(v, d, now)
	}
	if f.linksAt != v.now {
		f.linksAt = v.now
		f.links.SetMoving(f.field.Prefill, f.field.Decode, now)
		f.links.Fill(f.field.Links, f.field.Prefill, f.field.Decode, now)
	}
	f.protect()
	f.model.PriceServers(&f.field, &f.servers)
	f.servers.Now = runDuration(v.now)
}

// kvFree is how many tokens of KV more a decode server has room for, by what its engine said last.
func (f *fleet) kvFree(v *View, d int, now time.Time) int {
	gauge, capacity, sent := v.DecodeGauge(d), float64(v.DecodeCapacity()), v.kvSent(d)
	said := kvroom.Said{Used: gauge.KVUsed * capacity, Capacity: capacity, Running: float64(gauge.Running), Waiting: float64(gauge.Waiting)}
	f.sharing[d].Observe(said, sent, now)
	return f.sharing[d].Free(capacity, 0, sent, now)
}

// kvSent is what is there or on its way to a decode server.
func (v *View) kvSent(d int) kvroom.Sent {
	return kvroom.Sent{Tokens: v.DecodeUsed(d), Prompts: v.DecodeContext(d), Computing: v.gateway.account.decode[d].computing}
}

// updateCached notes what servers hold of a request now.
func (f *fleet) updateCached(v *View, j *job) {
	v.gateway.viewFor(j)
	for p := range f.field.Prefill {
		hit := v.PrefillHit(p)
		stored := hit
		if !f.unseenStore {
			stored = v.StoreHit(p)
		}
		f.field.Prefill[p].Cached = cached.Tokens{GPU: hit, CPU: hit, Disk: stored, Pending: v.PrefillPending(p)}
	}
	for d := range f.field.Decode {
		f.field.Decode[d].Cached = cached.Tokens{GPU: v.DecodeHit(d), Pending: v.DecodePending(d)}
	}
	f.setNew(j)
	f.offerFetches(v, j)
}

// price writes what a request costs on each server, as it is known now.
func (f *fleet) price(v *View, j *job, t *order.Ticket) {
	f.updateCached(v, j)
	f.model.PriceRequest(f.demand(v), &f.field, t)
	for p := range t.Prefill {
		if v.gateway.cluster.exact {
			t.Prefill[p] = v.PrefillSeconds(p)
		}
	}
	if j.pieces > 0 {
		t.KeepTo(j.pair)
	}
	t.ID, t.Arrived = int64(j.id), runDuration(j.arrived)
}

// demand is the request of the view.
func (f *fleet) demand(v *View) cost.Demand {
	d := cost.Demand{
		PromptTokens: v.Prompt(), OutputTokens: v.Output(), Objective: f.serves,
		FirstFromPrefill: v.scenario().firstFromPrefill(), Exact: true,
		Waited: runDuration(v.now - v.job.arrived), ITL: f.itl(v), New: v.job.returns.new, LostShare: f.ghosts.LostShare(),
	}
	if f.cuts {
		d.Gap = d.ITL
	}
	if f.serves == order.Throughput {
		d.TTFT = runDuration(v.scenario().SLO.TTFT)
	}
	return d
}

// Hold forecasts the gap behind prefill's token. Of a prompt whose pieces decode has pulled what moves is the
// rest.
func (f *fleet) Hold(v *View, j *job) float64 {
	p, d := &f.field.Prefill[j.pair.Prefill], &f.field.Decode[j.pair.Decode]
	now, bytes := clockTime(v.now), v.MissingBytes(j.pair.Decode)
	if moves := f.moving[j]; moves != nil {
		moves.End(now)
		defer func() { f.moving[j] = f.links.Begin(p.LinkEnd(), d.LinkEnd(), bytes, now) }()
	}
	f.linksAt = -1
	gap := f.links.Forecast(p.LinkEnd(), d.LinkEnd(), bytes, now).Seconds() + v.scenario().handOff() + v.RoomSeconds(j.pair.Decode) + v.StepSeconds(j.pair.Decode)
	return f.firstGap.Hold(runDuration(gap), f.itl(v)).Seconds()
}

// spare is how long a transfer may take without prefill's token being held for it.
func (f *fleet) spare(v *View, j *job) time.Duration {
	if !v.scenario().saysFirst(j.req) {
		return 0
	}
	others := v.scenario().handOff() + v.RoomSeconds(j.pair.Decode) + v.StepSeconds(j.pair.Decode)
	return f.firstGap.Spare(runDuration(others), f.itl(v))
}

func (f *fleet) Continued(v *View, j *job) {
	f.firstGap.Observe(runDuration(j.decodedAt-j.firstAt), f.itl(v))
}

// itl is the objective for gaps: the scenario's, but for policies that have another one.
func (f *fleet) itl(v *View) time.Duration { return runDuration(cmp.Or(f.gap, v.scenario().SLO.ITL)) }

// Prefilled and Transferred teach the links. A transfer that had to wait for room, or while
// decode computed prompts, shows nothing of them.
func (f *fleet) Prefilled(v *View, j *job) {
	if !j.awaits && j.pieces == 0 { // else it moves nothing yet
		f.BeginTransfer(v, j)
	}
}

// expect notes that decode is to pull what it lacks of a request, which is prefilled in so many seconds.
func (f *fleet) expect(v *View, j *job, in float64) {
	p, d := &f.field.Prefill[j.pair.Prefill], &f.field.Decode[j.pair.Decode]
	expected := f.links.Expect(p.LinkEnd(), d.LinkEnd(), v.MissingBytes(j.pair.Decode), j.req.Prompt, runDuration(in), clockTime(v.now))
	f.expected[j] = &expected
	f.linksAt = -1
}

// BeginTransfer takes a transfer to be under way.
func (f *fleet) BeginTransfer(v *View, j *job) {
	if expected := f.expected[j]; expected != nil {
		expected.End()
		delete(f.expected, j)
	}
	if f.kvFits(v, j.pair.Decode) {
		f.begin(v, j, j.estimate.bytes)
	}
}

// kvFits is as in package pd.
func (f *fleet) kvFits(v *View, d int) bool {
	free := f.sharing[d].Free(float64(v.DecodeCapacity()), 0, v.kvSent(d), clockTime(v.now))
	return free+f.links.KVComing(f.field.Decode[d].ID) >= 0
}

// begin takes so many bytes of a request to be under way, and nothing else of it.
func (f *fleet) begin(v *View, j *job, bytes float64) {
	f.moving[j].End(clockTime(v.now))
	p, d := &f.field.Prefill[j.pair.Prefill], &f.field.Decode[j.pair.Decode]
	f.linksAt = -1
	f.moving[j] = f.links.Begin(p.LinkEnd(), d.LinkEnd(), bytes, clockTime(v.now))
}

// BeginPull and EndPull take what decode pulls of a piece from what is expected, and from what it lacks of the request.
func (f *fleet) BeginPull(v *View, j *job, bytes float64) {
	f.begin(v, j, bytes)
	if expected := f.expected[j]; expected != nil {
		expected.Less(bytes)
	}
	j.estimate.bytes = max(0, j.estimate.bytes-bytes)
}

func (f *fleet) EndPull(v *View, j *job) {
	f.moving[j].End(clockTime(v.now))
	delete(f.moving, j)
	f.linksAt = -1
}

func (f *fleet) Transferred(v *View, j *job, seconds float64) {
	transfer, now := f.moving[j], clockTime(v.now)
	f.linksAt = -1
	defer transfer.End(now)
	delete(f.moving, j)
	if transfer == nil || j.estimate.room || j.pieces > 0 || v.gateway.account.decode[j.pair.Decode].prompts.Len() > 0 {
		return
	}
	transfer.Observe(runDuration(seconds), 0, now)
}

// clockTime is a time of the run as a clock would show it.
func clockTime(seconds float64) time.Time { return time.Unix(0, int64(runDuration(seconds))) }

// serverNumber reads a server's ID, which this file wrote.
func serverNumber(id string) int {
	n, err := strconv.Atoi(id)
	if err != nil {
		panic(err)
	}
	return n
}
