package pools

import (
	"net"
	"net/url"
	"strconv"
)

// Publisher is where an engine says that it publishes over ZMQ: TCP ports of its rank 0 on the host
// of its URL, to which each rank adds its number (SGLang 0.5.23, kv_events of /server_info,
// sglang/srt/runtime_context.py, describe_kv_events_publisher; vLLM 0.32, /kv_event_sources). 0 and "" are not published.
type Publisher struct {
	EventsPort int    `json:"events_port,omitempty"`
	ReplayPort int    `json:"replay_port,omitempty"`
	LoadPort   int    `json:"load_port,omitempty"`
	Topic      string `json:"topic,omitempty"`      // of the events
	LoadTopic  string `json:"load_topic,omitempty"` // of the load
	Ranks      int    `json:"ranks,omitempty"`      // that publish
}

// Published are ZMQ addresses at which a server's engine publishes: of rank 0, or of the server's own.
type Published struct {
	Events, Replay string // KV events, and where missed ones are replayed; "": none
	Topic          string // prefix of the events' topics
	Bind           bool   // the engine connects to Events
	Load           string // load as the engine's scheduler counts it; "": none
	LoadTopic      string
	Ranks          int // that publish events, and load, each on ports of its own
}

// Published returns where the server's engine publishes: as configured, else as the engine says.
func (s *Server) Published() Published {
	says := s.Identity().Publisher
	p := Published{
		Events: s.Events, Replay: s.Replay, Bind: s.EventBind, Ranks: max(1, s.EventRanks),
		Load: s.PublishedAt(says.LoadPort), LoadTopic: says.LoadTopic,
	}
	if s.Events == "" {
		p.Events, p.Replay, p.Topic = s.PublishedAt(says.EventsPort), s.PublishedAt(says.ReplayPort), says.Topic
	}
	if s.Events == "" || s.EventRanks == 0 {
		p.Ranks = max(1, min(says.Ranks, maxEventRanks))
	}
	if s.Rank != nil {
		p.Ranks = 1
	}
	return p
}

// PublishedAt is the ZMQ address of a port of rank 0 on the server's host, or of the server's own rank;
// "" of 0, and of what is no port.
func (s *Spec) PublishedAt(port int) string {
	if port < 1 || port > 65535 {
		return ""
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		return ""
	}
	if s.Rank != nil {
		port += *s.Rank
	}
	return "tcp://" + net.JoinHostPort(u.Hostname(), strconv.Itoa(port))
}
