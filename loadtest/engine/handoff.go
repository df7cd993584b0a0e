package engine

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// handoff is what a prefill leg returns so that a decode can fetch its KV: the
// kv_transfer_params of vLLM's NIXL connector. It is used once, within its lease.
type handoff struct {
	DoRemotePrefill bool      `json:"do_remote_prefill"`
	DoRemoteDecode  bool      `json:"do_remote_decode"`
	EngineID        string    `json:"remote_engine_id"`
	RequestID       string    `json:"remote_request_id"`
	BlockIDs        [][]int32 `json:"remote_block_ids"` // one list for each KV-cache group; ours has one
	Host            string    `json:"remote_host"`
	Port            int       `json:"remote_port"`
	TPSize          int       `json:"tp_size"`
	Tokens          int       `json:"remote_num_tokens"`
	ExpiryTime      float64   `json:"remote_blocks_expiry_time"` // seconds since 1970
	TransferMode    string    `json:"transfer_mode"`
	// Cached is prefill's cache hits. A decode that gets it reports it as its own, whatever
	// it computed itself, as vLLM 0.32 does; nil: it is not told.
	Cached *int `json:"remote_prefill_cached_tokens"`
}

// transferParams is what a request says about its KV. The zero value: nothing.
type transferParams struct {
	prefillLeg bool
	decodeLeg  bool
	handoff    *handoff // nil on a decode leg whose hand-off lacks a field
	// bootstraps are where the legs meet, one for each answer, when both run at once;
	// rank is the one that the body names, nil without.
	bootstraps []*bootstrapRoom
	rank       *int
	// source is a third engine that may hold the beginning of the prompt; nil: none.
	source *bootstrapRoom
	// looksUp: the KV may lie in a store.
	looksUp bool
	// answer is where a prefill leg fetches the KV of an answer that the prompt goes on behind;
	// nil: from nowhere.
	answer *handoff
	// name is how decode asks for what a prefill leg holds, reader the only address that
	// may; empty: by the internal request id, and any engine.
	name, reader string
}

// bootstrapOf of one answer, nil without.
func (t transferParams) bootstrapOf(answer int) *bootstrapRoom {
	if answer >= len(t.bootstraps) {
		return nil
	}
	return t.bootstraps[answer]
}

// parseTransferParams reads the kv_transfer_params of a request. A decode leg that
// lacks a field is no error: as in vLLM the request will compute its prompt itself.
func parseTransferParams(raw json.RawMessage) (transferParams, error) {
	if !present(raw) {
		return transferParams{}, nil
	}
	var p struct {
		DoRemotePrefill bool            `json:"do_remote_prefill"`
		DoRemoteDecode  bool            `json:"do_remote_decode"`
		EngineID        *string         `json:"remote_engine_id"`
		RequestID       *string         `json:"remote_request_id"`
		BlockIDs        json.RawMessage `json:"remote_block_ids"`
		Host            *string         `json:"remote_host"`
		Port            *int            `json:"remote_port"`
		TPSize          int             `json:"tp_size"`
		Tokens          int             `json:"remote_num_tokens"`
		Cached          *int            `json:"remote_prefill_cached_tokens"`
		Source          *kvSource       `json:"remote_kv_source"` // of an OffloadingConnector beside NIXL's
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return transferParams{}, fmt.Errorf("kv_transfer_params: %w", err)
	}
	blocks, named := parseBlockIDs(p.BlockIDs)
	named = named && p.EngineID != nil && p.RequestID != nil && p.Host != nil && p.Port != nil
	if !p.DoRemotePrefill {
		out := transferParams{prefillLeg: p.DoRemoteDecode}
		if p.DoRemoteDecode && named && len(blocks) > 0 {
			out.answer = &handoff{
				EngineID: *p.EngineID, RequestID: *p.RequestID, BlockIDs: [][]int32{blocks},
				Host: *p.Host, Port: *p.Port, TPSize: p.TPSize, Tokens: p.Tokens,
			}
		}
		if p.Source == nil {
			return out, nil
		}
		var err error
		out.source, err = p.Source.bootstrapRoom()
		return out, err
	}
	out := transferParams{decodeLeg: true}
	if !named {
		return out, nil
	}
	out.handoff = &handoff{
		EngineID: *p.EngineID, RequestID: *p.RequestID, BlockIDs: [][]int32{blocks},
		Host: *p.Host, Port: *p.Port, TPSize: p.TPSize, Tokens: p.Tokens, Cached: p.Cached,
	}
	return out, nil
}

// parseBlockIDs accepts one list of ids (older vLLM) or one list for each group.
func parseBlockIDs(raw json.RawMessage) (ids []int32, ok bool) {
	if !present(raw) {
		return nil, false
	}
	var groups [][]int32
	if json.Unmarshal(raw, &groups) == nil {
		return slices.Concat(groups...), true
	}
	ok = json.Unmarshal(raw, &ids) == nil
	return ids, ok
}

// Reasons for which a prefill engine refuses a pull.
const (
	rejectedEngine  = "foreign_engine"  // the hand-off is another engine's, or of an earlier life
	rejectedRequest = "unknown_request" // never handed over here, or long forgotten
	rejectedBlocks  = "wrong_blocks"    // the request is known, its blocks are others
	rejectedUsed    = "already_pulled"
	rejectedBusy    = "being_pulled"
	rejectedExpired = "expired"
	rejectedFreed   = "released"
	rejectedReader  = "foreign_reader" // meant for another decode engine
)

// heldKV is the KV of one finished prefill, held for its decode, or of an answer, held for the
// prefill of the next turn.
type heldKV struct {
	answer  bool
	blocks  []*block
	timer   *time.Timer // ends the lease
	reading bool        // a decode is reading it; the lease cannot end
	dropped bool        // its decode gave up while reading
	reader  string      // address of the only engine that may read; empty: any
}

// rememberedEndings is how many ended hand-offs are remembered, to tell a decode why
// it comes too late.
const rememberedEndings = 4096

// heldHandoffs are the hand-offs of one rank. Its rank's lock guards it.
type heldHandoffs struct {
	open   map[string]*heldKV // by request id
	ended  map[string]string  // request id -> rejectedUsed, rejectedExpired or rejectedFreed
	oldest []string           // of ended, in order
	opened chan struct{}      // closed, and made anew, when one opens
}

func newHeldHandoffs() *heldHandoffs {
	return &heldHandoffs{open: map[string]*heldKV{}, ended: map[string]string{}, opened: make(chan struct{})}
}

// hold opens a hand-off and wakes the requests that wait for one.
func (h *heldHandoffs) hold(name string, held *heldKV) {
	h.open[name] = held
	close(h.opened)
	h.opened = make(chan struct{})
}

// end forgets an open hand-off and remembers why; the caller releases its blocks.
func (h *heldHandoffs) end(requestID, why string) {
	h.open[requestID].timer.Stop()
	delete(h.open, requestID)
	h.remember(requestID, why)
}

// remember how a hand-off ended, so that its name is not used again.
func (h *heldHandoffs) remember(requestID, why string) {
	h.ended[requestID] = why
	h.oldest = append(h.oldest, requestID)
	if len(h.oldest) > rememberedEndings {
		delete(h.ended, h.oldest[0])
		h.oldest = h.oldest[1:]
	}
}

// check says whether a pull that names these blocks may read: "" or a rejection.
func (h *heldHandoffs) check(requestID string, blockIDs []int32) (*heldKV, string) {
	held := h.open[requestID]
	if held == nil {
		if why := h.ended[requestID]; why != "" {
			return nil, why
		}
		return nil, rejectedRequest
	}
	if held.reading {
		return nil, rejectedBusy
	}
	ids := make([]int32, len(held.blocks))
	for i, b := range held.blocks {
		ids[i] = b.id
	}
	if held.answer { // whoever goes on behind a part of it reads the blocks of that part
		ids = ids[:min(len(ids), len(blockIDs))]
	}
	if !slices.Equal(ids, blockIDs) {
		return nil, rejectedBlocks
	}
	return held, ""
}

// The rank's side of hand-offs: a prefill leg opens one, a pull reads it, and it
// ends by the read, by a release or by its lease.

// holdLocked keeps the prompt's blocks of a finished prefill and describes them. Where decode
// reads them by NIXL it is handed the last one too where the prompt fills only a part of it
// (vllm nixl/pull_scheduler.py, request_finished); of the others a prompt shorter than a block
// hands over nothing, which is legal.
func (r *rank) holdLocked(s *sequence) *handoff {
	blocks, tokens := s.prompt/r.cfg.BlockSize, s.prompt/r.cfg.BlockSize*r.cfg.BlockSize
	if part := s.prompt - tokens; part > 0 && r.handsPartOver() {
		blocks, tokens = blocks+1, s.prompt
		s.blocks[blocks-1].digest = r.pastAt(s, s.prompt)
	}
	r.cache.release(s.blocks[blocks:])
	ids := make([]int32, blocks)
	for i, b := range s.blocks[:blocks] {
		ids[i] = b.id
	}
	name := s.id
	if s.holdName != "" {
		name = s.holdName
	}
	if s.holdName != "" && (r.held.open[name] != nil || r.held.ended[name] != "") {
		r.rejectLocked(rejectedUsed) // a name is good for one hand-off
		r.cache.release(s.blocks[:blocks])
		return nil
	}
	if blocks > 0 || s.holdName != "" {
		held := &heldKV{blocks: s.blocks[:blocks], reader: s.reader}
		held.timer = time.AfterFunc(r.cfg.Lease, func() { r.expire(name, held) })
		r.held.hold(name, held)
	}
	cached := s.cached
	h := &handoff{
		DoRemotePrefill: true,
		EngineID:        r.id,
		RequestID:       s.id,
		BlockIDs:        [][]int32{ids},
		Host:            r.side.host,
		Port:            r.side.port,
		TPSize:          1,
		Tokens:          tokens,
		ExpiryTime:      float64(time.Now().Add(r.cfg.Lease).UnixMicro()) / 1e6,
		TransferMode:    "pull",
		Cached:          &cached,
	}
	switch r.cfg.Connector {
	case ConnectorNIXL, ConnectorSidecar:
	case ConnectorNIXLPush:
		h.TransferMode = "push"
	default:
		return nil // decode knows where to look
	}
	if s.wrongHandoff {
		h.RequestID = newID("cmpl-wrong-")
		for i := range ids {
			ids[i] = int32(r.cache.total()) - ids[i]
		}
	}
	return h
}

// handsPartOver reports whether hand-offs have a block that the prompt does not fill.
func (r *rank) handsPartOver() bool {
	return r.cfg.Connector == ConnectorNIXL || r.cfg.Connector == ConnectorSidecar
}

// pastAt is the past of a sequence's first n tokens.
func (r *rank) pastAt(s *sequence, n int) past {
	p, full := r.language.start(s.adapter), n/r.cfg.BlockSize
	if full > 0 {
		p = s.pasts[full-1]
	}
	for _, token := range s.tokens[full*r.cfg.BlockSize : n] {
		p = p.after(token)
	}
	return p
}

// expire ends a lease, unless it was extended or ended meanwhile, or is being read.
func (r *rank) expire(requestID string, held *heldKV) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held.open[requestID] != held || held.reading {
		return
	}
	r.counts.handoffsExpired++
	r.meters.kvExpired.Inc()
	r.freeHeldLocked(requestID, rejectedExpired)
}

// beginRead checks a pull and marks its hand-off as being read, so that its lease
// cannot end under the reader. It returns the digests of what the named blocks hold
// now. A rejection is counted.
func (r *rank) beginRead(requestID string, blockIDs []int32) (digests []past, rejection string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	held, why := r.held.check(requestID, blockIDs)
	if why != "" {
		r.rejectLocked(why)
		return nil, why
	}
	held.reading = true
	for _, b := range held.blocks[:len(blockIDs)] {
		digests = append(digests, b.digest)
	}
	return digests, ""
}

// endRead ends a hand-off that was read to the end, or whose reader gave up; a reader
// that broke off may come again, within the lease.
func (r *rank) endRead(requestID string, complete bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	held := r.held.open[requestID]
	if held == nil {
		return // the engine dropped all of them
	}
	held.reading = false
	switch {
	case complete && held.answer:
		r.counts.answersPulled++
		r.freeHeldLocked(requestID, rejectedUsed)
	case complete:
		r.counts.handoffsPulled++
		r.freeHeldLocked(requestID, rejectedUsed)
	case held.dropped:
		r.counts.handoffsReleased++
		r.freeHeldLocked(requestID, rejectedFreed)
	default:
		held.timer.Reset(r.cfg.Lease)
	}
}

// extendLease is a heartbeat from a decode that waits for room.
func (r *rank) extendLease(requestID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if held := r.held.open[requestID]; held != nil && !held.reading {
		held.timer.Reset(r.cfg.Lease)
	}
}

// releaseHeld frees a hand-off whose decode has given up. When the decode gave up
// while reading, its message may come before the end of its read is noticed; then
// endRead frees it.
func (r *rank) releaseHeld(requestID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch held := r.held.open[requestID]; {
	case held == nil:
	case held.reading:
		held.dropped = true
	default:
		r.counts.handoffsReleased++
		r.freeHeldLocked(requestID, rejectedFreed)
	}
}

// freeHeldLocked ends an open hand-off and frees its blocks.
func (r *rank) freeHeldLocked(requestID, why string) {
	held := r.held.open[requestID]
	r.held.end(requestID, why)
	r.cache.release(held.blocks)
	r.signal()
}

// reject counts a hand-off that was refused, or found to be another prompt's.
func (r *rank) reject(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rejectLocked(why)
}

func (r *rank) rejectLocked(why string) { r.counts.rejected[why]++ }
