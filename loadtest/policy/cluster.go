package policy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/tandem-gateway/tandem/pd/cost"
)

// job is one request on its way through the cluster.
type job struct {
	id      int
	req     *Request
	decile  int // of prompt length
	replica int // that it arrived at
	noise   float64
	arrived float64

	returns returning // what of its prompt came before, as the gateway knows that decides about it

	pair     Pair
	key      float64 // order in the prefill server's queue: lower goes first
	estimate estimate
	sender   *gateway       // that bound it, or its last piece
	fetch    kvFetch        // what its own is to have from a decode server first
	copyFrom *prefillServer // holds a part of the prompt that its own is to have first; nil: none

	waits     bool        // its prefill has not begun
	isBound   bool        // to its pair
	waitsAt   int         // its place among those that wait
	idleSince []idleSpell // of the prefill servers that were idle when it was bound
	idleWait  float64     // seconds for which it waited without need: see idleWait

	began       float64 // first step of its prefill
	prefillHit  int     // tokens
	onPrefill   int     // leading blocks it holds, hashed, on the prefill server
	computed    int     // tokens
	upTo        int     // tokens that the prefill under way computes: the prompt, or a piece of it
	cuts        []int   // where what is left of the prefill under way is cut so that decode pulls what is before meanwhile
	pieces      int     // of the prompt that are computed
	done        int     // tokens of them
	staged      int     // tokens that decode pulled before the last piece
	staging     []int   // ends of the pieces whose KV decode is to pull, the first of them now
	waitFrom    float64 // since when it has waited
	waited      float64 // seconds in all
	prefilledAt float64

	decodeHit    int // tokens
	onDecode     int // leading blocks it holds, hashed, on the decode server
	decodeBlocks int // blocks it holds there in all
	hasRoom      bool
	sent         int // prompt tokens whose transfer has begun
	flows        int // transfers under way
	bytes        float64

	fresh        bool              // in its first step since it joined the batch
	recompute    bool              // preempted: its KV is to be computed here
	compute      int               // prompt tokens to compute on the decode server
	chunk        int               // of them in the step under way
	decodePieces cost.DecodePieces // how decode computes the prompt; the zero value: as its budget of tokens lets it
	nextPiece    float64           // when decode has the request for the next piece
	generated    int
	followers    []*job  // whose legs wait for what decode pulls for this one
	awaits       bool    // the pull of another
	awaited      float64 // seconds for which it did
	firstAt      float64
	askedAt      float64 // decode, for what is behind prefill's token where that is held
	decodedAt    float64 // the first token that decode says: the first one, or that behind prefill's
	behind       bool    // decode has not gone on behind prefill's token yet
	lastToken    float64
	longestGap   float64
	preempted    int
	endedAt      float64
}

// whole is the whole blocks of what the prefill under way computes.
func (j *job) whole() []int32 { return j.req.wholeUpTo(j.upTo) }

// setNextCut lets the prefill that is to be computed, up to a token, end where it is cut.
func (j *job) setNextCut(upTo int) {
	if j.upTo = upTo; len(j.cuts) > 0 {
		j.upTo = j.cuts[0]
	}
}

func (j *job) context() int { return j.req.Prompt + j.generated }

// meanGap is the mean of the gaps between the answer's tokens, seconds; 0 where it has one
// token.
func (j *job) meanGap() float64 {
	return (j.lastToken - j.firstAt) / float64(max(1, j.req.Output-1))
}

// prefillEnd is when the prompt was computed.
func (j *job) prefillEnd() float64 {
	if j.pair.Prefill == Aggregated {
		return j.firstAt
	}
	return j.prefilledAt
}

// cluster is one run: the servers, the links between them, the gateways before
// them, and the requests.
type cluster struct {
	scenario   *Scenario
	exact      bool // gateways know what they cannot
	ours       bool // they keep their books as ours does: work ahead counts steps
	hw         *Hardware
	cal        *calendar
	net        *network
	events     *eventStream
	prefills   []*prefillServer
	decodes    []*decodeServer
	groups     []*decodeGroup
	store      *blockCache // that they share; nil: there is none
	storeLinks int32       // number of the link by which the first prefill server loads from it
	routes     [][]int32   // links of each pair, by prefill*decodes+decode
	gateways   []*gateway
	oneDecider bool // the first gateway decides for all
	// longestRun bounds how many decode steps are computed as one event.
	longestRun int
	blocks     int // distinct ones of all prompts
	jobs       []job
	idleWait   idleWait
	tally      tally
	open       int
}

// Run replays the trace under one policy and returns what came of each request.
// The same arguments give the same result, but for the time that decisions took.
func Run(trace *Trace, s *Scenario, policy *Policy, seed uint64) (*Outcome, error) {
	began := time.Now()
	c, err := newCluster(trace, s, policy, seed)
	if err != nil {
		return nil, err
	}
	if err := c.run(); err != nil {
		return nil, fmt.Errorf("policy %s, scenario %s, seed %d: %w", policy.Name, s.Name, seed, err)
	}
	o := c.outcome(policy, seed)
	o.RunSeconds = time.Since(began).Seconds()
	return o, nil
}

func (c *cluster) run() error {
	for c.open > 0 {
		c.countIdle(c.cal.next())
		if !c.cal.step() {
			return fmt.Errorf("%d requests never ended", c.open)
		}
	}
	return nil
}

func newCluster(trace *Trace, s *Scenario, policy *Policy, seed uint64) (*cluster, error) {
	if s.BurstEvery > 0 {
		trace = trace.withBursts(s.BurstEvery, s.BurstSize)
	}
	s = policy.on(s)
	c := &cluster{scenario: s, exact: policy.Exact, oneDecider: policy.OneDecider, ours: policy.Kind == Ours || policy.Foresight, hw: &s.Hardware, cal: &calendar{}, longestRun: 1 << 20}
	c.events = newEventStream(c, seed)
	c.blocks = trace.Blocks
	capacity := c.build()
	c.net = newNetwork(c.cal, capacity)
	c.idleWait.spells = make([]int, s.Prefill)
	c.scheduleSlowNICs()
	for i := range s.Replicas {
		c.gateways = append(c.gateways, newGateway(c, i, trace.Blocks, seed))
	}
	c.bind(policy, seed)
	if err := c.load(trace, seed); err != nil {
		return nil, err
	}
	if policy.Foresight {
		c.foresee()
	}
	return c, nil
}

// build makes the servers and the routes between them, and returns the capacity
// of each link: NICs of prefill, of decode, then uplinks and downlinks of racks, or each
// prefill server's own.
func (c *cluster) build() []float64 {
	s := c.scenario
	var capacity []float64
	for i := range s.Prefill {
		c.prefills = append(c.prefills, newPrefillServer(c, i))
		capacity = append(capacity, c.hw.NIC)
	}
	for i := range s.Decode {
		if i%s.LockstepRanks == 0 {
			c.groups = append(c.groups, &decodeGroup{cluster: c})
		}
		group := c.groups[len(c.groups)-1]
		d := newDecodeServer(c, i, s.decodeRack(i), 1)
		d.group = group
		group.servers = append(group.servers, d)
		c.decodes = append(c.decodes, d)
		capacity = append(capacity, c.hw.NIC)
	}
	for range s.racks() {
		capacity = append(capacity, s.uplink(), s.uplink())
	}
	for range s.Prefill {
		capacity = append(capacity, s.OwnUplink)
	}
	if s.Store != nil {
		c.store, c.storeLinks = newBlockCache(s.Store.Tokens, c.blocks, func(int32) {}), int32(len(capacity))
		for range s.Prefill {
			capacity = append(capacity, s.Store.BytesPerSecond)
		}
	}
	for p := range s.Prefill {
		for d := range s.Decode {
			nics := []int32{int32(p), int32(s.Prefill + d)}
			c.routes = append(c.routes, append(nics, s.linksBetween(s.prefillRack(p), s.decodeRack(d), p)...))
		}
	}
	return capacity
}

// scheduleSlowNICs lets the scenario's sick NIC lose its speed for a while.
func (c *cluster) scheduleSlowNICs() {
	for _, sick := range c.scenario.SlowNICs {
		c.cal.at(sick.From, func() { c.net.setCapacity(int32(sick.Prefill), c.hw.NIC*sick.Factor) })
		c.cal.at(sick.Until, func() { c.net.setCapacity(int32(sick.Prefill), c.hw.NIC) })
	}
}

// load enters the arrivals. Arrival times, noise and the gateway replica of a
// request depend on the seed only, so that policies meet the same requests.
func (c *cluster) load(trace *Trace, seed uint64) error {
	rng := rand.New(rand.NewPCG(seed, 1))
	at := trace.arrivals(c.scenario.Speedup, rng)
	if c.scenario.Surge != nil {
		c.scenario.Surge.shift(at)
	}
	outputs := rand.New(rand.NewPCG(seed, 3))
	deciles := trace.lengthDeciles()
	c.jobs = make([]job, len(at))
	for i := range c.jobs {
		j := &c.jobs[i]
		req := c.scenario.withOutput(&trace.Requests[i], outputs)
		if most := min(c.prefills[0].cache.capacity, c.decodes[0].cache.capacity); blocksOf(req.Prompt+req.Output) > most {
			return fmt.Errorf("request %d needs %d KV tokens: more than a server of scenario %s has", i, req.Prompt+req.Output, c.scenario.Name)
		}
		*j = job{id: i, req: req, decile: deciles[i], arrived: at[i], waitFrom: at[i], upTo: req.Prompt, replica: rng.IntN(len(c.gateways))}
		j.noise = math.Exp(c.scenario.Noise * rng.NormFloat64())
		c.cal.at(at[i], func() { c.arrive(j) })
	}
	c.open = len(c.jobs)
	return nil
}

// withOutput is a request of the trace with the scenario's answer.
func (s *Scenario) withOutput(r *Request, rng *rand.Rand) *Request {
	if s.Outputs == nil && s.OutputFactor == 1 {
		return r
	}
	other := *r
	if s.Outputs != nil {
		other.Output = s.Outputs.count(rng)
	}
	other.Output = int(math.Ceil(float64(other.Output) * s.OutputFactor))
	return &other
}

// dispatch sends a request to its servers.
func (c *cluster) dispatch(j *job) {
	prefill, decode := j.pair.Prefill, c.decodes[j.pair.Decode]
	j.setNextCut(j.upTo)
	if prefill == Aggregated || c.scenario.Overlap && j.pieces == 0 {
		decode.submit(j)
	}
	if prefill != Aggregated {
		c.copyPrefix(j, func() {
			c.fetchPrefix(j, func() { c.loadStored(j, func() { c.prefills[prefill].submit(j) }) })
		})
	}
}

// chunkBegins is called when the prompt is about to be computed up to a token. With
// overlap its KV leaves layer by layer meanwhile.
func (c *cluster) chunkBegins(j *job, to int) {
	if c.scenario.Overlap && j.hasRoom {
		c.transfer(j, to)
	}
}

// beginPrefill is called when the prompt, or a piece of it, is about to be computed.
func (c *cluster) beginPrefill(j *job) {
	switch {
	case j.pieces == 0:
		j.began, j.prefillHit = c.cal.now, j.computed
	case c.scenario.Overlap: // what it held is in what it holds now, until decode has all of it
		c.prefills[j.pair.Prefill].cache.drop(j.req.whole()[:j.done/blockTokens])
	}
	c.idleWait.end(j)
	j.waited += c.cal.now - j.waitFrom
}

// finishPrefill is called when a prompt is computed, or a piece of it.
func (c *cluster) finishPrefill(j *job) {
	c.putInStore(j)
	if j.upTo < j.req.Prompt {
		c.finishPiece(j)
		return
	}
	j.prefilledAt = c.cal.now
	if c.scenario.saysFirst(j.req) {
		j.firstAt, j.lastToken, j.generated, j.behind = c.cal.now, c.cal.now, 1, true
		if j.firstHolder() != nil {
			j.firstAt = math.Inf(1)
		}
	}
	c.notifyGateways(j, prefilled)
	if c.scenario.Overlap {
		c.tryJoin(j)
		return
	}
	if len(j.staging) == 0 {
		c.askDecode(j)
	}
}

// askDecode sends decode a request whose prompt is computed, and whose pieces decode has. One of ours waits until
// decode has what it pulls for another request, and this one lacks.
func (c *cluster) askDecode(j *job) {
	if c.ours && !c.decodes[j.pair.Decode].beginPull(j) {
		return
	}
	if learner, ok := j.sender.policy().(pullAwaiter); ok && j.pieces > 0 {
		learner.BeginTransfer(j.sender.viewFor(j), j)
	}
	j.holdFirst(c.cal.now)
	c.cal.after(c.scenario.handOff(), func() { c.decodes[j.pair.Decode].submit(j) })
}

// holdFirst sets when the client is given prefill's token, now that decode is asked for what is behind
// it: at the latest with decode's own.
func (j *job) holdFirst(now float64) {
	if holder := j.firstHolder(); j.behind && holder != nil {
		j.askedAt = now
		j.firstAt = now + holder.Hold(j.sender.viewFor(j), j)
	}
}

// firstHolder is the policy that holds prefill's token of a request, nil if none does.
func (j *job) firstHolder() firstHolder {
	holder, _ := j.sender.policy().(firstHolder)
	return holder
}

// finishPiece lets decode pull what it lacks of a piece, behind the pieces before it, and the rest
// of the prompt wait for its turn. With overlap decode has it as it is computed.
func (c *cluster) finishPiece(j *job) {
	j.pieces, j.done = j.pieces+1, j.upTo
	j.waitFrom = c.cal.now
	if !c.scenario.Overlap {
		j.staging = append(j.staging, j.upTo)
		if len(j.staging) == 1 {
			c.stage(j)
		}
	}
	if len(j.cuts) > 0 {
		j.cuts = j.cuts[1:]
		j.setNextCut(j.req.Prompt)
		c.cal.after(c.scenario.RoundTrip, func() { c.prefills[j.pair.Prefill].submit(j) })
		return
	}
	c.notifyGateways(j, pieceDone)
}

// stage pulls the KV of the first piece that waits for it: a request to decode of its own, that
// leaves it in decode's cache.
func (c *cluster) stage(j *job) {
	if watcher, ok := j.sender.policy().(pullWatcher); ok {
		watcher.BeginPull(j.sender.viewFor(j), j, max(0, j.estimate.bytes-float64(j.req.Prompt-j.staging[0])*c.hw.KVBytesPerToken))
	}
	c.cal.after(c.scenario.handOff(), func() { c.decodes[j.pair.Decode].stage(j) })
}

// finishStaging is called when decode has a piece, or has no room for it now.
func (c *cluster) finishStaging(j *job) {
	blocks := j.req.whole()[:j.staging[0]/blockTokens]
	j.staging = j.staging[1:]
	if watcher, ok := j.sender.policy().(pullWatcher); ok {
		watcher.EndPull(j.sender.viewFor(j), j)
	}
	c.prefills[j.pair.Prefill].release(blocks, 0)
	switch {
	case len(j.staging) > 0:
		c.stage(j)
	case j.upTo == j.req.Prompt && j.computed == j.upTo:
		c.askDecode(j)
	}
}

// recordRoom is called when a request has KV room on its decode server.
func (c *cluster) recordRoom(j *job) {
	if j.recompute || j.pair.Prefill == Aggregated {
		j.recompute = false
		j.compute = max(1, j.context()-j.decodeHit)
		if j.waits {
			j.began, j.prefillHit = c.cal.now, j.decodeHit
			c.idleWait.end(j)
			j.waited += c.cal.now - j.waitFrom
		}
		c.decodes[j.pair.Decode].join(j)
		return
	}
	j.hasRoom = true
	j.sent = j.decodeHit
	c.transfer(j, max(j.computed, j.decodeHit))
	c.tryJoin(j)
}

// transfer moves the KV of the prompt's tokens up to a point that decode lacks.
func (c *cluster) transfer(j *job, upTo int) {
	tokens := upTo - j.sent
	if tokens <= 0 {
		return
	}
	j.sent = upTo
	j.flows++
	c.move(j, tokens, func() {
		j.flows--
		c.tryJoin(j)
	})
}

// move sends the KV of so many tokens from prefill to decode.
func (c *cluster) move(j *job, tokens int, done func()) {
	bytes := float64(tokens) * c.hw.KVBytesPerToken
	j.bytes += bytes
	began := c.cal.now
	c.net.start(bytes, c.routes[j.pair.Prefill*len(c.decodes)+j.pair.Decode], func() {
		c.tally.recordTransfer(c, j, bytes, c.cal.now-began)
		done()
	})
}

// tryJoin brings a request to the decode batch once all its KV is there.
func (c *cluster) tryJoin(j *job) {
	if !j.hasRoom || j.computed < j.req.Prompt {
		return
	}
	c.transfer(j, j.req.Prompt)
	if j.flows > 0 {
		return
	}
	c.prefills[j.pair.Prefill].release(j.req.whole()[:j.onPrefill], len(j.req.Blocks)-j.onPrefill)
	decode := c.decodes[j.pair.Decode]
	decode.publish(j)
	decode.join(j)
	decode.endPull(j)
}

// firstToken is called, before it happens, when the first token that decode says of a request
// comes.
func (c *cluster) firstToken(j *job, at float64) {
	switch {
	case j.behind:
		j.behind = false
		j.firstAt = min(j.firstAt, at)
		j.lastToken = j.firstAt
	case j.generated > 0: // it was preempted
		return
	default:
		j.firstAt = at
	}
	j.decodedAt = at
	c.cal.at(at, func() { c.notifyGateways(j, streaming) })
}

// finishLocalPrefill is called when decode has computed a prompt by itself.
func (c *cluster) finishLocalPrefill(j *job, now float64) { c.firstToken(j, now) }

// finish is called when a request has its last token.
func (c *cluster) finish(j *job) {
	j.endedAt = c.cal.now
	c.open--
	c.notifyGateways(j, ended)
}
