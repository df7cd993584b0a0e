package pools

import (
	"cmp"
	"hash/fnv"
	"strconv"
	"strings"
	"sync/atomic"
)

// Identity is what an engine reports of itself. Its zero value: nothing.
type Identity struct {
	Engine      string `json:"engine,omitempty"` // vllm, sglang, trtllm; else what its models are owned by
	Version     string `json:"version,omitempty"`
	Connector   string `json:"connector,omitempty"`    // how it hands KV over; one of Connectors
	Role        Role   `json:"-"`                      // the only one that its mode allows; 0: any
	BlockTokens string `json:"block_tokens,omitempty"` // tokens of a KV block, as it writes them
	KVType      string `json:"kv_type,omitempty"`      // of the numbers in the KV, as it was set: auto, fp8_e5m2
	// TokenBytes is the bytes of KV of a token, of all ranks that hold a part or a copy of it; 0: not reported.
	TokenBytes float64 `json:"kv_bytes_per_token,omitempty"`
	KVPort     int     `json:"kv_port,omitempty"` // where other engines reach its KV; 0: not reported
	// KeepsAnswers: it keeps the KV of answers for the next turn's prefill, and reads that of others
	// (vLLM's bidirectional_kv_xfer).
	KeepsAnswers bool `json:"keeps_answers,omitempty"`
	// SwitchesRole: its role can be changed while it runs (SGLang's --enable-pd-role-switch). Which
	// it has now it does not say: it reports the one that it was started with.
	SwitchesRole bool `json:"switches_role,omitempty"`

	Publisher Publisher `json:"publisher,omitzero"` // where it says that it publishes KV events and load
}

// IsSince reports whether the version, such as 0.32.1rc1+cu130, is of a release or later.
func (i Identity) IsSince(major, minor int) bool {
	r, known := i.release()
	return known && r.isSince(major, minor)
}

// IsBefore reports whether the version is of an earlier release. A build between two releases may
// have what the later one has.
func (i Identity) IsBefore(major, minor int) bool {
	r, known := i.release()
	return known && !r.isSince(major, minor) && !strings.Contains(i.Version, "dev")
}

// release is 0.32 of version 0.32.1rc1+cu130.
type release struct{ major, minor int }

func (r release) isSince(major, minor int) bool {
	return r.major > major || r.major == major && r.minor >= minor
}

// isSincePatch reports whether the version is of a patch of 0.minor or later. Builds and candidates before the patch are not.
func (i Identity) isSincePatch(minor, patch int) bool {
	r, known := i.release()
	if !known || r != (release{0, minor}) {
		return known && r.isSince(0, minor)
	}
	_, rest, _ := strings.Cut(i.Version, ".")
	_, rest, _ = strings.Cut(rest, ".")
	after := strings.TrimLeft(rest, "0123456789")
	third, err := strconv.Atoi(strings.TrimSuffix(rest, after))
	before := strings.HasPrefix(after, "rc") || strings.HasPrefix(after, ".dev")
	return err == nil && (third > patch || third == patch && !before)
}

func (i Identity) release() (r release, known bool) {
	first, rest, dotted := strings.Cut(strings.TrimPrefix(i.Version, "v"), ".")
	if !dotted {
		return r, false
	}
	second, _, _ := strings.Cut(rest, ".")
	major, errMajor := strconv.Atoi(first)
	minor, errMinor := strconv.Atoi(second)
	return release{major, minor}, errMajor == nil && errMinor == nil
}

// identity is an Identity with what is asked of it for each request.
type identity struct {
	Identity
	whole     bool   // every question was answered in this incarnation of the server
	connector uint64 // key of the connector, where the configuration names none
	kv        uint64 // key of what else the KV depends on
	block     int    // tokens of a KV block; 0: not reported
	isVLLM    bool   // of a release that is known
	release   release
	// meetsAnywhere: an SGLang whose prefill and decode servers are told in every API where to meet.
	meetsAnywhere bool
}

func newIdentity(reported Identity, whole bool) *identity {
	id := &identity{Identity: reported, whole: whole, connector: compatibilityKey(cmp.Or(reported.Connector, defaultConnector))}
	if n, err := strconv.Atoi(reported.BlockTokens); err == nil {
		id.block = n
	}
	release, known := reported.release()
	id.release, id.isVLLM = release, known && reported.Engine == "vllm"
	id.meetsAnywhere = reported.Engine == "sglang" && reported.isSincePatch(5, 22)
	if reported.Version+reported.BlockTokens+reported.KVType != "" {
		id.kv = compatibilityKey(reported.Version, reported.BlockTokens, reported.KVType)
	}
	return id
}

// defaultConnector is that of a server of which neither the configuration nor the
// engine reports.
const defaultConnector = "nixl"

// capabilities are what the engine reports of itself, and what its answers have shown.
type capabilities struct {
	identity atomic.Pointer[identity]
	// cachedTokens is set once the engine has reported cached tokens. vLLM leaves
	// the number out when it is zero, and always without
	// --enable-prompt-tokens-details; only this distinguishes the two.
	cachedTokens atomic.Bool
	// retains is the incarnation in which the engine was first seen to keep the blocks of
	// answers; 0: none.
	retains atomic.Uint64
	// readsNoAnswers is the incarnation in which the engine was to read an answer's KV and said nothing
	// for long; 0: none.
	readsNoAnswers atomic.Uint64
	// noTokenIDs is the incarnation in which the engine was asked for token ids and reported
	// none; 0: none.
	noTokenIDs atomic.Uint64
	// readsPromptIDs is the incarnation in which the engine has shown that it reads the ids of a chat's prompt.
	readsPromptIDs atomic.Uint64
}

// unreported is the identity of an engine that reported nothing.
var unreported = newIdentity(Identity{}, false)

// knownIdentity is what the engine reported of itself, with what follows from it; of a server outside a fleet nothing.
func (l *serverState) knownIdentity() *identity {
	if l == nil {
		return unreported
	}
	return l.capabilities.identity.Load()
}

// Identity returns what the engine reported of itself.
func (l *serverState) Identity() Identity { return l.knownIdentity().Identity }

// BlockTokens is the size of the engine's KV blocks in tokens, 0 where it does not report it.
func (l *serverState) BlockTokens() int { return l.knownIdentity().block }

// IsVLLM reports whether the engine tells that it is vLLM 0.minor or later.
func (l *serverState) IsVLLM(minor int) bool {
	id := l.knownIdentity()
	return id.isVLLM && id.release.isSince(0, minor)
}

// MeetsAnywhere reports whether the engine tells that it is SGLang 0.5.22 or later, whose requests of every API say where
// prefill and decode meet.
func (l *serverState) MeetsAnywhere() bool { return l.knownIdentity().meetsAnywhere }

// SetIdentity keeps what the engine reported of itself; whole: it left nothing open that it
// may still report in this incarnation.
func (l *serverState) SetIdentity(reported Identity, whole bool) {
	l.capabilities.identity.Store(newIdentity(reported, whole))
	l.countChange()
}

// Identified reports whether there is nothing left to ask the engine of itself.
func (l *serverState) Identified() bool { return l.capabilities.identity.Load().whole }

// Connector returns how decode obtains the KV: as configured, else as the engine reports.
func (s *Server) Connector() string {
	if named := s.Spec.Connector; named != "" { // first: each request asks for its servers' several times
		return named
	}
	return cmp.Or(s.knownIdentity().Connector, defaultConnector)
}

// Store names the KV store outside the engines that the server shares with those of the same name,
// "" where it has none that is known of. Servers whose connector is such a store share one.
func (s *Server) Store() string {
	if s.Spec.Store == "" && s.Connector() == "store" {
		return "store"
	}
	return s.Spec.Store
}

// RecordCachedTokens remembers that the engine reports cached tokens.
func (l *serverState) RecordCachedTokens() { l.cachedTokens.Store(true) }

// RecordNoTokenIDs remembers that the engine does not know return_token_ids, until it is
// started anew.
func (l *serverState) RecordNoTokenIDs() {
	l.noTokenIDs.Store(l.Incarnation())
	l.countChange()
}

// RecordReadsPromptIDs remembers that the engine reads the ids of a chat's prompt in place of its messages, until it is
// started anew.
func (l *serverState) RecordReadsPromptIDs() { l.readsPromptIDs.Store(l.Incarnation() + 1) }

// ReadsPromptIDs reports whether the engine is known to read the ids of a chat's prompt in place of its messages. Its
// version alone does not say so: vLLM has a frontend that renders the messages all the same.
func (l *serverState) ReadsPromptIDs() bool { return l.readsPromptIDs.Load() == l.Incarnation()+1 }

// RecordRetains remembers that the engine keeps the blocks of its answers for a prefill to
// fetch, and reports whether that is new in this incarnation.
func (l *serverState) RecordRetains() bool { return l.retains.Swap(l.Incarnation()) != l.Incarnation() }

// RecordReadsNoAnswers remembers that the engine said nothing when it was to read an answer's KV, until it
// is started anew.
func (l *serverState) RecordReadsNoAnswers() { l.readsNoAnswers.Store(l.Incarnation()) }

// ReadsAnswers reports whether the engine may read an answer's KV, if it is set up for that.
func (l *serverState) ReadsAnswers() bool { return l.readsNoAnswers.Load() != l.Incarnation() }

// ReportsTokenIDs reports whether the engine may know return_token_ids.
func (l *serverState) ReportsTokenIDs() bool { return l.noTokenIDs.Load() != l.Incarnation() }

// ReportsCachedTokens reports whether an answer without the number means zero.
func (l *serverState) ReportsCachedTokens() bool { return l.cachedTokens.Load() }

// compatibilityKey is a number that servers share when one can use the KV of another: the same
// connector, weights and KV layout. Only such servers make a pair, so that a rollout
// passes through both pools without mixing.
func compatibilityKey(parts ...string) uint64 {
	h := fnv.New64a()
	for _, part := range parts {
		_, _ = h.Write([]byte(part)) // never fails (hash.Hash)
		_, _ = h.Write([]byte{0})
	}
	return h.Sum64()
}

// CompatibilityKey returns what servers share with which this one may be paired. The layout is
// what is configured; where that is empty, what the engine reports of its
// version and its KV cache.
func (s *Server) CompatibilityKey() uint64 {
	reported, key := s.capabilities.identity.Load(), s.key
	if s.Spec.Connector == "" {
		key ^= reported.connector
	}
	if s.Layout == "" {
		key ^= reported.kv
	}
	return key
}

// configuredKey is the configured part of the key.
func configuredKey(spec Spec) uint64 {
	key := compatibilityKey(spec.Weights, spec.Layout)
	if spec.Connector != "" {
		key ^= compatibilityKey(spec.Connector)
	}
	return key
}
