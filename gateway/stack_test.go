//go:build !race

// The race detector reads sockets by package net, in deeper frames.

package gateway

import (
	"net"
	"net/http"
	"runtime"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/enginehttp"
)

// stackOfStream is the stack of an open stream, in bytes: 4 KB. The collector halves a stack of which less than a quarter
// is used, and to that end a stream waits in frames of some 1,000 bytes (relay.await); what is done with an event fits
// in what is left. The bound is in the middle between that size and the next one.
const stackOfStream = 6 << 10

// An open stream has a stack of 4 KB once the heap was collected, and keeps it when its events come.
func TestStack_OfAnOpenStream(t *testing.T) {
	const open = 256
	engine := listenAsEngine(t)
	transport := enginehttp.NewTransport(10 * time.Second)
	t.Cleanup(transport.CloseIdleConnections)
	g := run(t, usual(t), func(r *http.Request) (*http.Response, error) {
		r.URL.Host = engine.listener.Addr().String()
		return transport.RoundTrip(r)
	}, alone(t))
	for range 3 {
		runtime.GC()
	}
	before := stacksInUse()
	var clients []net.Conn
	for range open {
		conn := g.dial()
		clients = append(clients, conn)
		askOn(t, conn)
		engine.open()
		readPast(t, conn, []byte("\n\n\r\n"))
	}
	opened := (stacksInUse() - before) / open
	for range 3 { // each halves a stack once
		runtime.GC()
	}
	waiting := (stacksInUse() - before) / open
	say := func(events int) (each int) {
		for i := range events {
			engine.says(i, engine.conns...)
			for _, conn := range clients {
				readPast(t, conn, []byte("\n\n\r\n"))
			}
		}
		return (stacksInUse() - before) / open
	}
	behind := say(2)
	followed := say(2 * followFrom)
	if waiting > stackOfStream || behind > stackOfStream || followed > stackOfStream {
		t.Errorf("the stack of an open stream has %d bytes while it waits, %d behind events and %d where a loop follows it, want 4 KB; %d as it opened", waiting, behind, followed, opened)
	}
	t.Logf("%d bytes as it opened, %d while it waits, %d behind events, %d where a loop follows it", opened, waiting, behind, followed)
}

// stacksInUse is what the stacks of all goroutines take, in bytes.
func stacksInUse() int {
	samples := []metrics.Sample{{Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(samples)
	return int(samples[0].Value.Uint64())
}
