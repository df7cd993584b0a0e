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
)

// publisher sends the KV events of one rank over ZMQ and serves those missed.
//
// A message on the PUB socket is [topic, number, payload]; numbers are 8 bytes
// big-endian and start at 0. A reader that missed some sends ["", number] to the
// ROUTER socket and gets ["", topic, number, payload] for each batch still kept from
// that number on, then ["", "", 2^64-1, ""].
//
// A ZMQ socket belongs to one goroutine: send has the PUB socket, replay the ROUTER.
// The batches kept lie between them, under a lock.
type publisher struct {
	rank   int
	topic  string
	asMaps bool
	keep   int

	context *zmq.Context
	pub     *zmq.Socket
	router  *zmq.Socket // nil: no replay
	stop    *zmq.Socket // ends replay; replay polls the other end, stopped
	stopped *zmq.Socket

	eventsAt string // addresses in use, ports chosen by the system filled in
	replayAt string

	batches chan []kvEvent
	senders sync.WaitGroup
	readers sync.WaitGroup

	mu   sync.Mutex // guards kept and next
	kept [][]byte   // payload of batch n is at n % keep
	next uint64     // number of the next batch
}

const (
	// endOfReplay is the number of the message that ends a replay.
	endOfReplay = ^uint64(0)
	// publishBuffer is how many batches may wait for the PUB socket, which itself
	// never blocks.
	publishBuffer = 1024
	// publishHighWater is vLLM's: beyond it a slow subscriber loses messages.
	publishHighWater = 100_000
)

// newPublisher opens the sockets of a rank, or returns nil without an endpoint.
func newPublisher(cfg *Config, rank int) (p *publisher, err error) {
	if cfg.EventsEndpoint == "" {
		return nil, nil
	}
	p = &publisher{
		rank: rank, topic: cfg.EventsTopic, asMaps: cfg.EventsAsMaps, keep: cfg.ReplayBatches,
		batches: make(chan []kvEvent, publishBuffer),
	}
	defer func(half *publisher) {
		if err != nil {
			half.closeSockets()
		}
	}(p)
	if p.context, err = zmq.NewContext(); err != nil {
		return nil, fmt.Errorf("ZMQ context: %w", err)
	}
	if p.pub, p.eventsAt, err = p.open(zmq.PUB, cfg.EventsEndpoint, publishHighWater); err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	if cfg.ReplayEndpoint != "" {
		if err = p.openReplay(cfg); err != nil {
			return nil, fmt.Errorf("replay: %w", err)
		}
		p.readers.Go(p.replay)
	}
	p.senders.Go(p.send)
	return p, nil
}

// openReplay makes the ROUTER socket and the pipe that ends its goroutine.
func (p *publisher) openReplay(cfg *Config) (err error) {
	// A ROUTER drops what is over its high water mark, so it has room for a whole replay.
	if p.router, p.replayAt, err = p.open(zmq.ROUTER, cfg.ReplayEndpoint, cfg.ReplayBatches+1); err != nil {
		return err
	}
	if p.stopped, err = p.context.NewSocket(zmq.PAIR); err != nil {
		return err
	}
	if p.stop, err = p.context.NewSocket(zmq.PAIR); err != nil {
		return err
	}
	const pipe = "inproc://stop"
	if err = p.stopped.Bind(pipe); err != nil {
		return err
	}
	return p.stop.Connect(pipe)
}

// open makes a socket and binds it, or connects a PUB to an address that is no
// wildcard, as vLLM does. It returns the address in use.
func (p *publisher) open(kind zmq.Type, endpoint string, highWater int) (socket *zmq.Socket, at string, err error) {
	if socket, err = p.context.NewSocket(kind); err != nil {
		return nil, "", err
	}
	defer func(opened *zmq.Socket) {
		if err != nil {
			_ = opened.Close() // the first error says more
			socket = nil
		}
	}(socket)
	address := endpointOfRank(endpoint, p.rank)
	if err = socket.SetSndhwm(highWater); err != nil {
		return socket, "", err
	}
	if err = socket.SetLinger(0); err != nil {
		return socket, "", err
	}
	if strings.Contains(address, "[") {
		if err = socket.SetIpv6(true); err != nil {
			return socket, "", err
		}
	}
	if kind == zmq.PUB && !binds(address) {
		err = socket.Connect(address)
	} else {
		err = socket.Bind(address)
	}
	if err != nil {
		return socket, "", fmt.Errorf("%s: %w", address, err)
	}
	at, err = socket.GetLastEndpoint()
	return socket, loopbackOfAny.Replace(at), err
}

// loopbackOfAny names the machine itself where a socket listens at all addresses, those of IPv4 with those of IPv6.
var loopbackOfAny = strings.NewReplacer("//0.0.0.0:", "//127.0.0.1:", "//[::]:", "//127.0.0.1:")

func binds(endpoint string) bool {
	return strings.Contains(endpoint, "*") || strings.Contains(endpoint, "::") ||
		strings.HasPrefix(endpoint, "ipc:") || strings.HasPrefix(endpoint, "inproc:")
}

// endpointOfRank adds the rank to a tcp port, or a suffix to another name. A port
// that is chosen by the system ("*") stays.
func endpointOfRank(endpoint string, rank int) string {
	if rank == 0 {
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

// publish hands a batch over. Only the rank's loop calls it.
func (p *publisher) publish(events []kvEvent) { p.batches <- events }

// send owns the PUB socket until batches is closed.
func (p *publisher) send() {
	for events := range p.batches {
		payload := encodeBatch(time.Now(), events, p.rank, p.asMaps)
		if _, err := p.pub.SendMessage(p.topic, p.remember(payload), payload); err != nil {
			slog.Error("KV events not sent", "rank", p.rank, "error", err)
		}
	}
}

// remember keeps a payload for replay and returns its number as bytes.
func (p *publisher) remember(payload []byte) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	number := binary.BigEndian.AppendUint64(nil, p.next)
	if len(p.kept) < p.keep {
		p.kept = append(p.kept, payload)
	} else {
		p.kept[p.next%uint64(p.keep)] = payload
	}
	p.next++
	return number
}

// recall returns the batches still kept from a number on, and the number of the first.
func (p *publisher) recall(from uint64) (first uint64, payloads [][]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first = max(from, p.next-uint64(len(p.kept)))
	for n := first; n < p.next; n++ {
		payloads = append(payloads, p.kept[n%uint64(p.keep)])
	}
	return first, payloads
}

// replay owns the ROUTER socket until stop is written to.
func (p *publisher) replay() {
	poller := zmq.NewPoller()
	poller.Add(p.router, zmq.POLLIN)
	poller.Add(p.stopped, zmq.POLLIN)
	for {
		ready, err := poller.Poll(-1)
		if err != nil {
			slog.Error("replay ended", "rank", p.rank, "error", err)
			return
		}
		for _, polled := range ready {
			if polled.Socket == p.stopped {
				return
			}
			p.answerReplay()
		}
	}
}

// answerReplay serves one request: [identity, "", number]. Others are ignored.
func (p *publisher) answerReplay() {
	request, err := p.router.RecvMessageBytes(0)
	if err != nil || len(request) != 3 || len(request[1]) != 0 || len(request[2]) != 8 {
		slog.Warn("replay request ignored", "rank", p.rank, "frames", len(request), "error", err)
		return
	}
	reader := request[0]
	first, payloads := p.recall(binary.BigEndian.Uint64(request[2]))
	for i, payload := range payloads {
		number := binary.BigEndian.AppendUint64(nil, first+uint64(i))
		if _, err := p.router.SendMessage(reader, "", p.topic, number, payload); err != nil {
			slog.Warn("replay broken off", "rank", p.rank, "error", err)
			return
		}
	}
	end := binary.BigEndian.AppendUint64(nil, endOfReplay)
	if _, err := p.router.SendMessage(reader, "", "", end, ""); err != nil {
		slog.Warn("replay broken off", "rank", p.rank, "error", err)
	}
}

// close sends what is waiting and ends both goroutines. The rank's loop has ended.
func (p *publisher) close() {
	close(p.batches)
	p.senders.Wait()
	if p.stop != nil {
		if _, err := p.stop.Send("", 0); err != nil {
			slog.Error("replay not stopped", "rank", p.rank, "error", err)
		} else {
			p.readers.Wait()
		}
	}
	p.closeSockets()
}

func (p *publisher) closeSockets() {
	for _, socket := range []*zmq.Socket{p.pub, p.router, p.stop, p.stopped} {
		if socket != nil {
			if err := socket.Close(); err != nil {
				slog.Warn("ZMQ socket not closed", "rank", p.rank, "error", err)
			}
		}
	}
	if p.context != nil {
		if err := p.context.Term(); err != nil {
			slog.Warn("ZMQ context not closed", "rank", p.rank, "error", err)
		}
	}
}
