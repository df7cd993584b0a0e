package proxybench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sort"
	"sync"
	"time"

	zmq "github.com/pebbe/zmq4"
	"github.com/tinylib/msgp/msgp"
)

// eventsEngine is a vLLM that publishes KV events. Its tokens are those that it answers to /tokenize.
const eventsEngine = "vllm-events"

// step is how long an engine's KV events wait for those of other requests: vLLM publishes those of a step together.
const step = 5 * time.Millisecond

// kvCache is what an engine reports that it holds: each block of 16 tokens once, until all are cleared for the next
// who receives it. It evicts none, since a measure does not fill it.
type kvCache struct {
	mu     sync.Mutex // guards all below
	held   map[uint64]struct{}
	events int    // that are not published yet
	queued []byte // these, encoded
}

func newKVCache() *kvCache { return &kvCache{held: map[uint64]struct{}{}} }

// hold adds the whole blocks of a prompt, and reports those that are new.
func (c *kvCache) hold(p *chatTokens) {
	names, tokens := p.names, p.tokens
	c.mu.Lock()
	defer c.mu.Unlock()
	held := sort.Search(len(names), func(i int) bool { // of a block that is held all before it are
		_, held := c.held[names[i]]
		return !held
	})
	if held == len(names) {
		return
	}
	for _, name := range names[held:] {
		c.held[name] = struct{}{}
	}
	parent := uint64(0)
	if held > 0 {
		parent = names[held-1]
	}
	c.storedLocked(names[held:], parent, tokens[held*blockTokens:len(names)*blockTokens], held == 0)
}

// storedLocked reports blocks in a row (vLLM distributed/kv_events.py, as an array).
func (c *kvCache) storedLocked(names []uint64, parent uint64, tokens []int32, begins bool) {
	b := msgp.AppendString(msgp.AppendArrayHeader(c.queued, 7), "BlockStored")
	b = msgp.AppendArrayHeader(b, uint32(len(names)))
	for _, name := range names {
		b = msgp.AppendUint64(b, name)
	}
	if begins {
		b = msgp.AppendNil(b)
	} else {
		b = msgp.AppendUint64(b, parent)
	}
	b = msgp.AppendArrayHeader(b, uint32(len(tokens)))
	for _, token := range tokens {
		b = msgp.AppendInt32(b, token)
	}
	b = msgp.AppendNil(msgp.AppendInt(b, blockTokens)) // no adapter
	c.queued = msgp.AppendString(b, "GPU")
	c.events++
}

// clear empties the cache, so that who has begun to receive its events receives all of it.
func (c *kvCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = map[uint64]struct{}{}
	c.queued = msgp.AppendString(msgp.AppendArrayHeader(c.queued, 1), "AllBlocksCleared")
	c.events++
}

// batch takes the events that are not published yet, as the payload of a message: [seconds since 1970, [events], rank];
// nil: there are none.
func (c *kvCache) batch(at time.Time) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.events == 0 {
		return nil
	}
	b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), float64(at.UnixMicro())/1e6)
	b = append(msgp.AppendArrayHeader(b, uint32(c.events)), c.queued...)
	c.events, c.queued = 0, c.queued[:0]
	return msgp.AppendInt(b, 0)
}

// publish sends a batch at each step, until the context ends. The message is [topic, number, payload]. A gateway
// receives events from some time after it serves: what was published before would be missing for it with all that
// builds on it, so the cache begins anew with each that subscribes, of which an XPUB is told.
func (c *kvCache) publish(ctx context.Context, address string) (err error) {
	socket, err := zmq.NewSocket(zmq.XPUB)
	if err != nil {
		return fmt.Errorf("publish KV events: %w", err)
	}
	defer func() { err = errors.Join(err, socket.Close()) }()
	if err := errors.Join(socket.SetLinger(0), socket.SetXpubVerbose(1), socket.SetSndhwm(100_000), socket.Bind(address)); err != nil {
		return fmt.Errorf("publish KV events at %s: %w", address, err)
	}
	ticks := time.NewTicker(step)
	defer ticks.Stop()
	for number := uint64(0); ; {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticks.C:
			for {
				heard, err := socket.RecvBytes(zmq.DONTWAIT)
				if err != nil { // nobody has come or gone
					break
				}
				if len(heard) > 0 && heard[0] == 1 {
					c.clear()
				}
			}
			payload := c.batch(now)
			if payload == nil {
				continue
			}
			if _, err := socket.SendMessage("", binary.BigEndian.AppendUint64(nil, number), payload); err != nil {
				return fmt.Errorf("publish KV events: %w", err)
			}
			number++
		}
	}
}
