package pools

import (
	"cmp"
	"strconv"
	"strings"
)

// Identity is what an engine says of itself. Its zero value: nothing.
type Identity struct {
	Engine      string `json:"engine,omitempty"` // vllm, sglang, trtllm; else what its models are owned by
	Version     string `json:"version,omitempty"`
	Connector   string `json:"connector,omitempty"`    // how it hands KV over; one of Connectors
	Role        Role   `json:"-"`                      // the only one that its mode allows; 0: any
	BlockTokens string `json:"block_tokens,omitempty"` // tokens of a KV block, as it writes them
	KVType      string `json:"kv_type,omitempty"`      // of the numbers in the KV, as it was set: auto, fp8_e5m2
	KVPort      int    `json:"kv_port,omitempty"`      // where other engines reach its KV; 0: not told
}

// IsSince reports whether the version, such as 0.32.1rc1+cu130, is of a release or later.
func (i Identity) IsSince(major, minor int) bool {
	parts := strings.SplitN(strings.TrimPrefix(i.Version, "v"), ".", 3)
	if len(parts) < 2 {
		return false
	}
	a, errA := strconv.Atoi(parts[0])
	b, errB := strconv.Atoi(parts[1])
	return errA == nil && errB == nil && (a > major || a == major && b >= minor)
}

// identity is an Identity with what is asked of it for each request.
type identity struct {
	Identity
	whole     bool   // every question was answered in this life of the server
	connector uint64 // class of the connector, where the configuration names none
	kv        uint64 // class of what else the KV depends on
}

func newIdentity(told Identity, whole bool) *identity {
	id := &identity{Identity: told, whole: whole, connector: class(cmp.Or(told.Connector, defaultConnector))}
	if told.Version+told.BlockTokens+told.KVType != "" {
		id.kv = class(told.Version, told.BlockTokens, told.KVType)
	}
	return id
}

// defaultConnector is that of a server of which neither the configuration nor the
// engine tells.
const defaultConnector = "nixl"

// Identity returns what the engine told of itself; of a server outside a fleet nothing.
func (l *live) Identity() Identity {
	if l == nil {
		return Identity{}
	}
	return l.told.Load().Identity
}

// SetIdentity keeps what the engine reported of itself; whole: it left nothing open that it
// may still report in this life of it.
func (l *live) SetIdentity(reported Identity, whole bool) { l.told.Store(newIdentity(reported, whole)) }

// Identified reports whether there is nothing left to ask the engine of itself.
func (l *live) Identified() bool { return l.told.Load().whole }

// Connector returns how decode obtains the KV: as configured, else as the engine tells.
func (s *Server) Connector() string { return s.connectorOf(s.Spec) }

func (l *live) connectorOf(spec Spec) string {
	return cmp.Or(spec.Connector, l.Identity().Connector, defaultConnector)
}
