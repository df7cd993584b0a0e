package engine

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// sglangFields are what SGLang's disaggregation adds to a request: one value, or one
// for each answer.
type sglangFields struct {
	BootstrapHost json.RawMessage `json:"bootstrap_host"`
	BootstrapPort json.RawMessage `json:"bootstrap_port"`
	BootstrapRoom json.RawMessage `json:"bootstrap_room"`
	RoutedDPRank  *int            `json:"routed_dp_rank"`
	PrefillDPRank *int            `json:"disagg_prefill_dp_rank"`
}

// dropRooms takes out of a chat that was a message or a response what SGLang's classes of those have no place for before
// 0.5.22: where the legs meet, and their ranks (srt/entrypoints/anthropic/protocol.py and openai/protocol.py,
// PDRoutingFields; sgl-project/sglang#35229, #35497).
func (e *Engine) dropRooms(chat *chatRequest) {
	if e.cfg.Connector == ConnectorSGLang && !e.isSince(5, 22) {
		chat.sglangFields = sglangFields{}
	}
}

// sglangParams refuses what would let an engine wait for a peer that does not come. An engine of no
// disaggregation mode (both) does not read the fields. All answers to a prompt meet in the prompt's room, whatever
// rooms there are for them (0.5.23, srt/managers/tokenizer_manager.py, _handle_batch_request), and a room is used once.
func (e *Engine) sglangParams(f *requestFields, prompts, n int) (transferParams, error) {
	answers := prompts * n
	p := transferParams{rank: f.RoutedDPRank}
	if p.rank != nil && (*p.rank < 0 || *p.rank >= len(e.ranks)) {
		return p, badRequest("routed_dp_rank", "routed_dp_rank %d is out of range [0, %d)", *p.rank, len(e.ranks))
	}
	if e.cfg.Role == RoleBoth {
		return p, nil
	}
	rooms, err := perAnswer[int64](f.BootstrapRoom, answers)
	if err != nil || len(rooms) == 0 {
		return p, badRequest("bootstrap_room", "Invalid request: Disaggregated request received without boostrap room id. (%v)", err)
	}
	hosts, errHost := perAnswer[string](f.BootstrapHost, answers)
	ports, errPort := perAnswer[int](f.BootstrapPort, answers)
	if errHost != nil || errPort != nil || len(hosts) == 0 || len(ports) == 0 {
		return p, badRequest("bootstrap_host", "Invalid request: bootstrap_host %s, bootstrap_port %s", f.BootstrapHost, f.BootstrapPort)
	}
	p.prefillLeg, p.decodeLeg = e.cfg.Role == RolePrefill, e.cfg.Role == RoleDecode
	for i, room := range rooms {
		if room < 0 || slices.Contains(rooms[:i], room) {
			return p, badRequest("bootstrap_room", "bootstrap_room %d is negative or there twice", room)
		}
		at := &bootstrapRoom{id: strconv.FormatInt(room, 10), host: hosts[i], port: ports[i], rank: -1, stalls: true}
		if f.PrefillDPRank != nil {
			at.rank = *f.PrefillDPRank
		}
		if i < prompts {
			p.bootstraps = append(p.bootstraps, slices.Repeat([]*bootstrapRoom{at}, n)...)
		}
	}
	if p.prefillLeg {
		follows := int(rooms[0] % int64(len(e.ranks)))
		if p.rank == nil {
			p.rank = &follows
		}
		if *p.rank != follows && f.PrefillDPRank == nil {
			return p, errRoomConflict
		}
	}
	return p, nil
}

// errRoomConflict is the answer of a prefill server of several ranks (its load-balance-method is
// follow_bootstrap_room unless it is set) to a request that names a rank other than its room's, and not
// that decode knows so (sglang 0.5.23 srt/disaggregation/common/conn.py, CommonKVSender).
var errRoomConflict = &apiError{http.StatusInternalServerError, "InternalServerError", "KVTransferError: follow_bootstrap_room conflict", ""}

// perAnswer reads one value, or a list of one for each answer when there are several.
func perAnswer[T any](raw json.RawMessage, answers int) ([]T, error) {
	if !present(raw) {
		return nil, nil
	}
	var one T
	if json.Unmarshal(raw, &one) == nil && answers == 1 {
		return []T{one}, nil
	}
	var list []T
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, err
	}
	if len(list) != answers {
		return nil, fmt.Errorf("%d values for %d answers", len(list), answers)
	}
	return list, nil
}

// How SGLang waits for its own health check (http_server.py, health_generate): it looks for
// a sign of life of the scheduler each second, for 20 s.
const (
	sglangHealthLook = time.Second      // simulated
	sglangHealthWait = 20 * time.Second // real
)

// ready answers whether the engine takes requests. It asks no scheduler.
func (e *Engine) ready(x *exchange) error { return e.health(x) }

// healthGenerate makes one token without a partner, as SGLang does in any disaggregation
// mode, and is content with any sign of the scheduler's life meanwhile.
func (e *Engine) healthGenerate(x *exchange) error {
	if err := e.aliveRanks(x.rank); err != nil {
		return err
	}
	asked := time.Now()
	j, err := e.start(x, &generation{
		kind: "health", prompts: [][]int32{{e.language.begin}}, n: 1,
		sampling: sampling{maxTokens: 1, ignoreEOS: true, topLogprobs: -1},
	})
	if err != nil {
		return err
	}
	defer j.stop()
	look := time.NewTicker(max(time.Millisecond, time.Duration(float64(sglangHealthLook)*e.cfg.TimeScale)))
	defer look.Stop()
	for time.Since(asked) < sglangHealthWait {
		select {
		case <-x.r.Context().Done():
			return errClientGone
		case <-look.C:
		}
		if j.rank.emittedAt.Load() >= asked.UnixNano() {
			x.w.WriteHeader(http.StatusOK)
			return nil
		}
	}
	return &apiError{http.StatusServiceUnavailable, "ServiceUnavailableError", "The scheduler gives no sign of life.", ""}
}

// errTransfer is what SGLang answers when a room broke, whichever side broke it.
var errTransfer = &apiError{http.StatusInternalServerError, "InternalServerError", "KVTransferError: the transfer of the request's KV failed", ""}
