package zmqsub

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"time"
)

// Config is how sockets behave and how long replays may take.
type Config struct {
	// QueueMessages is how many live messages wait in a socket (RCVHWM). ZMQ bounds no bytes, and one message may have
	// millions: they wait at the engine instead, whose own queue is long (100,000 messages in vLLM and SGLang).
	QueueMessages int
	// ReplayMessages is the same of answers to a request for a replay: what a ROUTER cannot send at once it drops.
	ReplayMessages int
	MaxMessage     int64 // bytes; a peer that sends more is disconnected

	// Rest is the time between the moments at which feeds look again that had some messages: what comes meanwhile, on all of
	// them, wakes threads up once. The index may lag behind the engines by as much; what was bound to a server meanwhile is
	// in it as a guess. A message behind a time without any is read at once, and a feed that has more than a quarter of
	// QueueMessages in such a time does not rest. 0: none does.
	Rest time.Duration

	// ConnectWarning is how long a socket may take to be connected for the first time before
	// that is warned of.
	ConnectWarning time.Duration
	ReconnectMin   time.Duration
	ReconnectMax   time.Duration
	// Heartbeat is the time between ZMTP pings. 0: none, and TCP's keepalive notices a
	// silent death within a minute. Peers built on go-zeromq (llm-d's simulator) answer
	// no pings and would be disconnected again and again.
	Heartbeat time.Duration

	ReplayIdle     time.Duration // longest wait for the next answer of a replay
	ReplayAttempts int           // in a row that bring nothing
	ReplayTime     time.Duration // for all attempts together
	ReplayPause    time.Duration // after attempts that failed
	Replays        int           // at once

	// CheckAfter after connecting, and then every CheckEvery, a source that can replay checks
	// that what it knows is still true. It bounds for how long a lost last batch or a
	// restart without a message goes unnoticed.
	CheckAfter time.Duration
	CheckEvery time.Duration
}

// Default returns the configuration that a deployment should start from.
func Default() Config {
	return Config{
		QueueMessages:  64,
		ReplayMessages: 100_000,
		MaxMessage:     64 << 20,
		Rest:           10 * time.Millisecond,
		ConnectWarning: 10 * time.Second,
		ReconnectMin:   100 * time.Millisecond,
		ReconnectMax:   time.Second,
		ReplayIdle:     2 * time.Second,
		ReplayAttempts: 3,
		ReplayTime:     2 * time.Minute,
		ReplayPause:    30 * time.Second,
		Replays:        8,
		CheckAfter:     500 * time.Millisecond,
		CheckEvery:     10 * time.Second,
	}
}

// Validate reports what is wrong with the configuration, nil if nothing.
func (c Config) Validate() error {
	switch {
	case c.QueueMessages <= 0 || c.ReplayMessages <= 0 || c.MaxMessage <= 0:
		return errors.New("KV event queue and message size must be positive")
	case c.Rest < 0:
		return errors.New("the time between two looks at KV events must not be negative")
	case c.ConnectWarning <= 0 || c.ReconnectMin <= 0 || c.ReconnectMax < c.ReconnectMin:
		return errors.New("KV event reconnect times must be positive and in order")
	case c.ReplayIdle <= 0 || c.ReplayAttempts <= 0 || c.ReplayTime <= 0 || c.ReplayPause < 0 || c.Replays <= 0:
		return errors.New("KV event replay limits must be positive")
	case c.CheckAfter <= 0 || c.CheckEvery <= 0:
		return errors.New("KV event check times must be positive")
	}
	return nil
}

// Feed is where the events of a source come from.
type Feed struct {
	Events string // tcp://host:5557; with Bind the address to bind, such as tcp://*:6001
	Replay string // tcp://host:5558; empty: what is missed is lost
	Bind   bool   // the engine is in connect mode
	Topic  string // prefix of the topics wanted; mostly empty, which is all
}

// ForRank is the feed of a data-parallel rank, given that of rank 0: engines add the
// rank to tcp ports and a suffix to other names.
func (f Feed) ForRank(rank int) Feed {
	f.Events, f.Replay = endpointOfRank(f.Events, rank), endpointOfRank(f.Replay, rank)
	return f
}

func endpointOfRank(endpoint string, rank int) string {
	if rank == 0 || endpoint == "" {
		return endpoint
	}
	rest, isTCP := strings.CutPrefix(endpoint, "tcp://")
	if !isTCP {
		return endpoint + "_dp" + strconv.Itoa(rank)
	}
	host, port, err := net.SplitHostPort(rest)
	n, notNumber := strconv.Atoi(port)
	if err != nil || notNumber != nil {
		return endpoint
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(n+rank))
}
