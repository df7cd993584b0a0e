package engine

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	zmq "github.com/pebbe/zmq4"
	"github.com/tinylib/msgp/msgp"
)

const (
	loadTopic = "load"
	// loadLook is how often a load is compared with the last that was sent: SGLang does it
	// every fifth step.
	loadLook = 10 * time.Millisecond
	// loadHeartbeat is how often an unchanged load is sent.
	loadHeartbeat = time.Second
	// loadHighWater is SGLang's: a slow reader loses loads, and the next one tells more.
	loadHighWater = 8
)

// loadPublisher pushes the load of one rank as SGLang 0.5.23 does (srt/managers/scheduler_components/
// load_publisher.py): ["load", number, LoadStat], a changed one at once, else once a second.
type loadPublisher struct {
	rank    *rank
	context *zmq.Context
	pub     *zmq.Socket // of the goroutine, once it runs
	at      string      // address in use
	ended   chan struct{}
	owner   sync.WaitGroup
}

// newLoadPublisher opens the socket of a rank, or returns nil without an endpoint.
func newLoadPublisher(cfg *Config, r *rank) (p *loadPublisher, err error) {
	if cfg.LoadEndpoint == "" {
		return nil, nil
	}
	p = &loadPublisher{rank: r, ended: make(chan struct{})}
	if p.context, err = zmq.NewContext(); err != nil {
		return nil, fmt.Errorf("ZMQ context: %w", err)
	}
	sockets := publisher{rank: r.index, context: p.context}
	if p.pub, p.at, err = sockets.open(zmq.PUB, cfg.LoadEndpoint, loadHighWater); err != nil {
		_ = p.context.Term() // the first error says more
		return nil, fmt.Errorf("load: %w", err)
	}
	p.owner.Go(p.run)
	return p, nil
}

// run owns the socket until ended is closed.
func (p *loadPublisher) run() {
	tick := time.NewTicker(loadLook)
	defer tick.Stop()
	var last rankCounts
	var sent time.Time
	for number := uint64(0); ; {
		if now := p.rank.pushedCounts(); now != last || time.Since(sent) >= loadHeartbeat {
			if _, err := p.pub.SendMessage(loadTopic, binary.BigEndian.AppendUint64(nil, number), now.encode(p.rank.index)); err != nil {
				slog.Error("load not sent", "rank", p.rank.index, "error", err)
			}
			last, sent = now, time.Now()
			number++
		}
		select {
		case <-p.ended:
			return
		case <-tick.C:
		}
	}
}

func (p *loadPublisher) close() {
	if p == nil {
		return
	}
	close(p.ended)
	p.owner.Wait()
	if err := p.pub.Close(); err != nil {
		slog.Warn("ZMQ socket not closed", "rank", p.rank.index, "error", err)
	}
	if err := p.context.Term(); err != nil {
		slog.Warn("ZMQ context not closed", "rank", p.rank.index, "error", err)
	}
}

// rankCounts are what SGLang pushes of a rank.
type rankCounts struct{ running, waiting, usedTokens, tokens, waitingTokens int }

func (r *rank) pushedCounts() rankCounts {
	l := r.load()
	return rankCounts{l.running, l.waiting + l.loading, l.usedBlocks * l.blockSize, l.blocks * l.blockSize, l.waitingTokens}
}

// encode writes a LoadStat: a tag, and values by their place.
func (c rankCounts) encode(rank int) []byte {
	b := msgp.AppendArrayHeader(nil, 11)
	b = msgp.AppendString(b, "LoadStat")
	for _, n := range [...]int{c.running, c.waiting, c.usedTokens, c.tokens, rank, c.waitingTokens, c.usedTokens + c.waitingTokens, 0, 0, 0} {
		b = msgp.AppendInt(b, n)
	}
	return b
}

// kvEvents is what SGLang says of where it publishes (srt/runtime_context.py,
// describe_kv_events_publisher), nil where it publishes nothing.
func (e *Engine) kvEvents() map[string]any {
	first := e.ranks[0]
	if first.events == nil || !binds(e.cfg.EventsEndpoint) {
		return nil
	}
	said := map[string]any{
		"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": portOf(first.events.eventsAt), "topic": e.cfg.EventsTopic,
		"block_size": e.cfg.BlockSize, "dp_size": len(e.ranks),
	}
	if at := first.events.replayAt; at != "" {
		said["replay_endpoint_port_base"] = portOf(at)
	}
	if first.pushes != nil {
		said["load_endpoint_port_base"], said["load_topic"] = portOf(first.pushes.at), loadTopic
	}
	return said
}

// portOf is the port of a TCP endpoint.
func portOf(endpoint string) int {
	_, port, err := net.SplitHostPort(strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(port) // 0 is no port
	return n
}
