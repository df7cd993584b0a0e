//go:build !race

// The race detector allocates on its own, and empties pools by chance.

package gateway

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace/noop"

	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pools"
)

// Allocations of one request, from the bytes that a client sends to those that it gets:
// HTTP by fasthttp, access by a key with limits, parsing, choice of a pair, both legs with
// the hand-off, relay, accounting. Engines answer from memory, so that their client is
// not in the numbers. They are exact: one more is a change that should be meant,
// one fewer is a number to write here.
const (
	// wholeAllocations: where a decode server answers alone they are about half, a third of those to
	// admit (the request's fields and contexts). The prefill leg and the hand-off take the others.
	// The request is not traced, as where no collector is named.
	wholeAllocations = 60
	// streamAllocations of an answer of four events.
	streamAllocations = 108
	// eventAllocations of each further event, of the usual shape.
	eventAllocations = 0
)

func TestAllocations_OfARequest(t *testing.T) {
	whole := allocationsOf(t, false, 0)
	stream := allocationsOf(t, true, 4)
	if whole != wholeAllocations {
		t.Errorf("a whole answer takes %d allocations, %d are written down", whole, wholeAllocations)
	}
	if stream != streamAllocations {
		t.Errorf("a stream of four events takes %d allocations, %d are written down", stream, streamAllocations)
	}
	const more = 256
	if each := (allocationsOf(t, true, 4+more) - stream) / more; each != eventAllocations {
		t.Errorf("each further event takes %d allocations, %d are written down", each, eventAllocations)
	}
}

// allocationsOf is how many allocations one request takes, whose answer has so many events.
func allocationsOf(t *testing.T, stream bool, events int) int {
	const key = "sk-counted"
	keys, err := access.ReadKeys([]byte("secret: 0123456789abcdef0123456789abcdef\nkeys:\n  - sha256: "+access.Hash(key)+
		"\n    tenant: ada\n    requests-per-minute: 1000000\n"), access.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	of := shape{access: access.New(access.DefaultConfig(), nil), pools: pools.Default(), cost: cost.Default()}
	of.tracer = noop.Tracer{}
	of.access.Apply(keys)
	of.pools.ProbeInterval = time.Hour // no probe while it is counted
	of.cost.PairsFirst = true
	prefill, decode := healthy(t), healthy(t)
	engines := newMemoryEngines(prefill, stream, events)
	base, _, _ := serveAs(t, of, engines.roundTrip,
		pools.Spec{URL: prefill, Role: pools.Prefill, Connector: "nixl"}, pools.Spec{URL: decode, Role: pools.Decode, Connector: "nixl"})
	client := newRawClient(t, base, key, stream)
	for range 200 { // pools, rings and learned figures have their size
		client.ask(t)
	}
	if engines.prefills < 200 {
		t.Fatalf("%d of 200 requests had a prefill leg", engines.prefills)
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it would empty pools
	// On a busy machine requests take longer, and more of what is done by time falls into them: the least counts.
	least := math.MaxInt
	for range 5 {
		least = min(least, int(testing.AllocsPerRun(200, func() { client.ask(t) })))
	}
	return least
}

// memoryEngines answer one leg at a time, always the same, without an allocation.
type memoryEngines struct {
	prefillHost string
	prefills    int // one after the other
	prefill     memoryAnswer
	decode      memoryAnswer
}

// memoryAnswer is a response whose body begins anew with each request.
type memoryAnswer struct {
	text []byte
	body bytes.Reader
	http.Response
}

func (a *memoryAnswer) Read(p []byte) (int, error) { return a.body.Read(p) }
func (a *memoryAnswer) Close() error               { return nil }

func newMemoryEngines(prefill string, stream bool, events int) *memoryEngines {
	e := &memoryEngines{prefillHost: strings.TrimPrefix(prefill, "http://")}
	e.prefill.text = []byte(`{"choices":[{"text":"a"}],"kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":"e","remote_block_ids":[[1,2]],"remote_host":"127.0.0.1","remote_port":1},` +
		`"usage":{"prompt_tokens":2,"completion_tokens":1,"total_tokens":3}}`)
	e.prefill.Header = http.Header{"Content-Type": {"application/json"}}
	e.decode.Header = e.prefill.Header
	e.decode.text = []byte(`{"choices":[{"index":0,"text":"Hello","finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":1,"total_tokens":3}}`)
	if stream {
		e.decode.Header = http.Header{"Content-Type": {"text/event-stream"}}
		e.decode.text = []byte(strings.Repeat(`data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}`+"\n\n", events-1) +
			`data: {"choices":[{"index":0,"text":"b","finish_reason":"stop"}]}` + "\n\n" +
			fmt.Sprintf(`data: {"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":%d,"total_tokens":%d}}`, events, events+2) + "\n\ndata: [DONE]\n\n")
	}
	for _, a := range []*memoryAnswer{&e.prefill, &e.decode} {
		a.StatusCode, a.ContentLength, a.Body = http.StatusOK, -1, a
	}
	return e
}

func (e *memoryEngines) roundTrip(r *http.Request) (*http.Response, error) {
	_, _ = io.Copy(io.Discard, r.Body)
	_ = r.Body.Close()
	a := &e.decode
	if r.URL.Host == e.prefillHost {
		a = &e.prefill
		e.prefills++
	}
	a.body.Reset(a.text)
	return &a.Response, nil
}

// rawClient sends the same bytes over one connection, and reads the answer into one buffer.
type rawClient struct {
	conn    net.Conn
	request []byte
	end     []byte // of each answer
	buffer  []byte
}

func newRawClient(t *testing.T, base, key string, stream bool) *rawClient {
	t.Helper()
	host := strings.TrimPrefix(base, "http://")
	conn, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	prompt := strings.Repeat("river ", 40) // of several blocks: a shorter one takes no pair
	body, end := `{"model":"m","prompt":"`+prompt+`","max_tokens":16}`, `"total_tokens":3}}`
	if stream {
		body, end = `{"model":"m","prompt":"`+prompt+`","max_tokens":512,"stream":true}`, "\r\n0\r\n\r\n"
	}
	request := fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nX-Request-Id: counted\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		host, key, len(body), body)
	return &rawClient{conn: conn, request: []byte(request), end: []byte(end), buffer: make([]byte, 1<<20)}
}

// ask sends the request and waits for the end of a good answer.
func (c *rawClient) ask(t *testing.T) {
	if _, err := c.conn.Write(c.request); err != nil {
		t.Fatal(err)
	}
	read := 0
	for !bytes.HasSuffix(c.buffer[:read], c.end) {
		n, err := c.conn.Read(c.buffer[read:])
		read += n
		if err != nil {
			t.Fatalf("%v after %s", err, c.buffer[:read])
		}
	}
	if !bytes.HasPrefix(c.buffer[:read], []byte("HTTP/1.1 200")) {
		t.Fatalf("%s", c.buffer[:read])
	}
}
