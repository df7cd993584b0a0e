package pd

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

const whileClosed = "while a body is closed"

// panicking is a body that panics when it is closed.
type panicking struct{ io.Reader }

func (panicking) Close() error { panic(whileClosed) }

// A stream has its place in the queue and its lease up to Close, and neither after it,
// however it ended: what one stream kept, no other request would ever get.
func TestStream_CloseLeavesTheQueueHoweverItEnded(t *testing.T) {
	const (
		first = "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n"
		last  = "data: {\"choices\":[{\"index\":0,\"text\":\"b\",\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
	)
	var broken *BrokenStreamError
	for name, x := range map[string]struct {
		body  io.ReadCloser
		read  bool // to its end
		ended func(error) bool
		panic any
	}{
		"complete":             {io.NopCloser(strings.NewReader(first + last)), true, func(err error) bool { return errors.Is(err, io.EOF) }, nil},
		"broken":               {io.NopCloser(strings.NewReader(first)), true, func(err error) bool { return errors.As(err, &broken) }, nil},
		"left by the client":   {io.NopCloser(strings.NewReader(first + last)), false, nil, nil},
		"a panic in its Close": {panicking{strings.NewReader(first + last)}, false, nil, whileClosed},
	} {
		f := newTestFleet(t, 1, testPrompt(100))
		f.Transport = sends(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: x.body, Request: r}, nil
		})
		want := func(when string, requests int) {
			t.Helper()
			leases := 0
			for _, s := range f.Fleet.Servers() {
				leases += s.InFlight(pools.Decode, time.Now()).Requests
			}
			if waiting, inFlight := f.Queue.Len(); waiting != 0 || inFlight != requests || leases != requests {
				t.Errorf("%s, %s: %d wait, %d are in flight, on %d leases; want %d", name, when, waiting, inFlight, leases, requests)
			}
			if bytes := f.Queue.Bytes(); (bytes > 0) != (requests > 0) {
				t.Errorf("%s, %s: %d bytes are held", name, when, bytes)
			}
		}
		answer, err := f.Run(t.Context(), aggregatedRequest(t, true))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want("begun", 1)
		for err = nil; x.read && err == nil; {
			_, err = answer.Stream.Next()
		}
		if x.read && !x.ended(err) {
			t.Errorf("%s: it ended with %v", name, err)
		}
		want("before Close", 1)
		closeStream := func() (said any) {
			defer func() { said = recover() }()
			answer.Stream.Close()
			return nil
		}
		if said := closeStream(); said != x.panic {
			t.Errorf("%s: Close panicked with %v", name, said)
		}
		want("closed", 0)
		if said := closeStream(); said != nil {
			t.Errorf("%s: the second Close panicked with %v", name, said)
		}
		want("closed twice", 0)
	}
}
