package gateway

import (
	"github.com/cespare/xxhash/v2"

	"github.com/tandem-gateway/tandem/pd/api"
)

// sessionHeaders are those by which agents and frameworks name the session that a request
// belongs to, as they send them in 2026: coding agents (x-claude-code-session-id;
// session-id and session_id, which differ by version; x-opencode-session with
// x-session-affinity), proxies (x-litellm-session-id), routers (x-session-id).
var sessionHeaders = []string{
	"X-Session-Id", "X-Claude-Code-Session-Id", "Session-Id", "Session_id", "X-Session-Affinity", "X-Opencode-Session", "X-Litellm-Session-Id",
	"Conversation_id",
}

// longestSession is how much a session's name may have, in bytes; names are UUIDs and the like.
const longestSession = 512

// sessionOf is a hash of what the client calls the session of a request, the most particular
// name first; 0 where it has none. It is a hint: see predict.Sessions for what it may do.
func sessionOf(h header, d *api.Dialect, body api.Body) uint64 {
	for _, name := range sessionHeaders {
		if text := h.Get(name); text != "" {
			return sessionHash("h", text)
		}
	}
	if text, ok := body.Get("prompt_cache_key").String(); ok && text != "" {
		return sessionHash("k", text)
	}
	field := "user"
	if d == api.Messages { // user_id names the session too, in agents that speak that API
		if metadata, ok := body.Get("metadata").Object(); ok {
			body, field = metadata, "user_id"
		}
	}
	if text, ok := body.Get(field).String(); ok && text != "" {
		return sessionHash("u", text)
	}
	return 0
}

// sessionHash is never 0 for a name that is short enough. Names of different kinds are
// different sessions.
func sessionHash(kind, name string) uint64 {
	if len(name) > longestSession {
		return 0
	}
	return max(1, xxhash.Sum64String(kind+name))
}
