package pools

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/tandem-gateway/tandem/pools/load"
)

// Role is which legs a server takes. A breaker is kept per server and leg, so
// Prefill and Decode also name the leg that a claim is for.
type Role uint8

const (
	Prefill Role = 1 << iota
	Decode
	Both = Prefill | Decode
)

// Serves reports whether a server of role r takes legs of the given role.
func (r Role) Serves(leg Role) bool { return r&leg != 0 }

func (r Role) String() string {
	switch r {
	case Prefill:
		return "prefill"
	case Decode:
		return "decode"
	case Both:
		return "both"
	}
	return fmt.Sprintf("role(%d)", uint8(r))
}

// Server is one member of a snapshot: the spec as of that snapshot and the live
// state that all snapshots share.
type Server struct {
	Spec
	id            string
	host, address string   // of the URL; the address is host:port as proxies write it
	scheme        string   // see splitURL
	authority     string   // likewise
	key           uint64   // see compatibilityKey; the configured part
	kvHosts       []string // see KVHosts
	fleet         *Fleet
	*serverState
}

// PageURL is the URL of a path of the engine, which begins with a slash, or of a page elsewhere, which is a URL
// already.
func (s *Server) PageURL(page string) (*url.URL, error) {
	to := new(url.URL)
	return to, s.SetPageURL(to, page)
}

// SetPageURL is PageURL into memory that is there. It is asked for each leg: a path of a server whose own URL is a scheme
// and an authority, as it mostly is, needs no parsing.
func (s *Server) SetPageURL(to *url.URL, page string) error {
	own := strings.HasPrefix(page, "/")
	if own && s.authority != "" && !strings.ContainsAny(page, "?#%") {
		*to = url.URL{Scheme: s.scheme, Host: s.authority, Path: page}
		return nil
	}
	if own {
		page = s.URL + page
	}
	parsed, err := url.Parse(page)
	if err == nil {
		*to = *parsed
	}
	return err
}

// splitURL is the scheme and the authority of a server's URL, "" where that is more, or needs parsing.
func splitURL(of string) (scheme, authority string) {
	scheme, authority, _ = strings.Cut(of, "://")
	if strings.ContainsAny(authority, "/@?#%\\ ") {
		return "", ""
	}
	return scheme, authority
}

// FreshLoad returns the load that the engine reports, all unknown once it is old.
func (s *Server) FreshLoad(now time.Time) load.Load {
	if load := s.Load(); load.FreshAt(now, s.fleet.cfg.ProbeInterval) {
		return load
	}
	return load.Load{}
}

// Tokens returns the load of the server in tokens: prompt tokens that wait for
// prefill, and those of the sequences that run. What the engine counts is preferred;
// where it counts requests only, the gateways' own counts stand in.
func (s *Server) Tokens(now time.Time) (waiting, running float64) {
	load := s.FreshLoad(now)
	waiting, running = float64(s.InFlight(Prefill, now).Tokens), float64(s.InFlight(Decode, now).Tokens)
	if load.WaitingTokens.Known {
		waiting = load.WaitingTokens.Value
	}
	if load.RunningTokens.Known {
		running = load.RunningTokens.Value
	}
	return waiting, running
}

// needs reports whether a request cannot do without the leg on such servers:
// decode always, prefill where decode never computes a prompt (SGLang, behind llm-d's sidecar too).
func (s *Server) needs(leg Role) bool {
	return leg == Decode || s.Connector() == "sglang" || s.Connector() == "llmd-sidecar" && s.Identity().Connector == "sglang"
}

// ServesAlone reports whether the server, where it decodes, also serves requests whole.
func (s *Server) ServesAlone() bool { return !s.needs(Prefill) }

// KVHostPort is where other engines reach the server's KV: as configured, else at the
// host of its URL and the port that the engine reports, or the usual one.
func (s *Server) KVHostPort(usual int) (host string, port int) {
	if reported := s.Identity().KVPort; reported != 0 {
		usual = reported
	}
	if s.KVAddress == "" && len(s.kvHosts) > 0 {
		return s.kvHosts[0], usual
	}
	host, port, _ = s.kvHostPort(usual) // the spec was validated
	return host, port
}

// UnitName names what is scaled, of which the server is a part.
func (s *Server) UnitName() string { return cmp.Or(s.Unit, s.URL) }

// ID names the server; see Spec.ID.
func (s *Server) ID() string { return s.id }
