package zmqsub

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	zmq "github.com/pebbe/zmq4"
	"github.com/tinylib/msgp/msgp"
)

// announcement is as vLLM's msgpack.dumps writes it.
func announcement(pairs ...string) []byte {
	b := msgp.AppendMapHeader(nil, uint32(len(pairs)/2))
	for _, text := range pairs {
		b = msgp.AppendString(b, text)
	}
	return b
}

func TestAnnouncements_AreReceived(t *testing.T) {
	hub, err := NewHub(Default(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	a, err := hub.ListenAnnouncements("tcp://127.0.0.1:*")
	if err != nil {
		t.Fatal(err)
	}
	address := a.Address()
	ctx, stop := context.WithCancel(t.Context())
	heard := make(chan Announcement)
	var running sync.WaitGroup
	running.Go(func() {
		a.Run(ctx, func(a Announcement) {
			select {
			case heard <- a:
			case <-ctx.Done():
			}
		})
	})
	dealer, err := zmq.NewSocket(zmq.DEALER)
	if err != nil {
		t.Fatal(err)
	}
	if err := dealer.Connect(address); err != nil {
		t.Fatal(err)
	}
	good := announcement("type", "P", "http_address", "10.0.0.1:8000", "zmq_address", "10.0.0.1:14579")
	for _, message := range [][]byte{
		nil, {0xc1}, {0xdf, 0xff, 0xff, 0xff, 0xff}, good[:len(good)-3],
		announcement("type", "X", "http_address", "h:1", "zmq_address", "h:2"),
		announcement("type", "D", "http_address", "h:1"),
		good,
	} {
		if _, err := dealer.SendBytes(message, 0); err != nil {
			t.Fatal(err)
		}
	}
	// The first that is heard is the only one that is of use.
	if got, want := <-heard, (Announcement{Type: "P", HTTP: "10.0.0.1:8000", KV: "10.0.0.1:14579"}); got != want {
		t.Errorf("heard %+v, want %+v", got, want)
	}
	if err := dealer.Close(); err != nil {
		t.Error(err)
	}
	stop()
	running.Wait()
	if err := hub.Close(); err != nil {
		t.Error(err)
	}
}
