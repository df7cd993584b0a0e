package live

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/gateway/peers"
)

// asking is an Ask whose gateways answer after a time: b reports, and c does not answer.
func asking(t *testing.T, after time.Duration, asked *atomic.Int32) Ask {
	t.Helper()
	return func(ctx context.Context, path string) []peers.Answer {
		if path != "/ui/report?model=m" && path != "/ui/report?model=m2" {
			t.Errorf("asked for %s", path)
		}
		asked.Add(1)
		select {
		case <-time.After(after):
		case <-ctx.Done():
			return []peers.Answer{{Peer: peers.Peer{ID: "b"}, Err: ctx.Err()}}
		}
		body, err := json.Marshal(Report{At: time.Now(), Gateway: Gateway{Replica: "not b", Waiting: 7}})
		if err != nil {
			t.Error(err)
		}
		return []peers.Answer{
			{Peer: peers.Peer{ID: "b"}, Status: http.StatusOK, Body: body},
			{Peer: peers.Peer{ID: "c"}, Err: &url.Error{Op: "Get", URL: "http://10.0.0.3:8081/ui/report", Err: context.DeadlineExceeded}},
		}
	}
}

// gatewaysOf is the gateways in each event that a page got.
func gatewaysOf(page *reader) (events []string) {
	for event := range strings.SplitSeq(strings.TrimSuffix(page.text(), "\n\n"), "\n\n") {
		data := strings.TrimPrefix(event, "event: state\ndata: ")
		text := ""
		for _, g := range gjson.Get(data, "gateways").Array() {
			text += g.Get("replica").String() + ":" + g.Get("waiting").String() + g.Get("silent").String() + " "
		}
		events = append(events, strings.TrimSpace(text))
	}
	return events
}

// A gateway that is slow to answer delays no page: what this one knows is shown at once and every two
// seconds, the others' when they have answered, and who did not with the reason.
func TestEvents_WaitForNoOtherGateway(t *testing.T) {
	s := sourceOf(t)
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		s.Replica, s.Ask = "a", asking(t, time.Second, &asked)
		h := New(s)
		ctx, leave := context.WithCancel(t.Context())
		var page reader
		done := opened(ctx, h, &page)
		const all = "a:0 b:7 c:0context deadline exceeded"
		for _, at := range []struct {
			after time.Duration
			want  string
		}{{0, "a:0"}, {time.Second, "a:0," + all}, {999 * time.Millisecond, "a:0," + all}, {time.Millisecond, "a:0," + all + "," + all}} {
			time.Sleep(at.after)
			synctest.Wait()
			if got := strings.Join(gatewaysOf(&page), ","); got != at.want {
				t.Errorf("%v later: %s, want %s", at.after, got, at.want)
			}
		}
		time.Sleep(8 * time.Second)
		synctest.Wait()
		if n := len(gatewaysOf(&page)); n != 7 || asked.Load() != 6 {
			t.Errorf("%d events and %d questions in ten seconds", n, asked.Load())
		}
		leave()
		<-done
		time.Sleep(time.Hour)
		if asked.Load() != 6 {
			t.Errorf("they are asked while nobody looks: %d", asked.Load())
		}
	})
}

// Pages of one model share what is asked; a gateway that begins to hang is asked once at a time, and
// what it said is shown for six seconds more.
func TestOthers_AreAskedOnceForAllPages(t *testing.T) {
	s := sourceOf(t)
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		answer, hang := asking(t, 0, &asked), atomic.Bool{}
		s.Replica, s.Ask = "a", func(ctx context.Context, path string) []peers.Answer {
			if hang.Load() {
				asked.Add(1)
				<-ctx.Done()
				return nil
			}
			return answer(ctx, path)
		}
		h := New(s)
		var pages [3]reader
		for i := range pages {
			opened(t.Context(), h, &pages[i])
		}
		newest := func() string {
			synctest.Wait()
			events := gatewaysOf(&pages[0])
			return events[len(events)-1]
		}
		if got := newest(); asked.Load() != 1 || !strings.HasPrefix(got, "a:0 b:7") {
			t.Errorf("asked %d times: %s", asked.Load(), got)
		}
		hang.Store(true)
		time.Sleep(5 * time.Second)
		if got := newest(); asked.Load() != 2 || !strings.HasPrefix(got, "a:0 b:7") {
			t.Errorf("asked %d times: %s", asked.Load(), got)
		}
		time.Sleep(2 * time.Second)
		if got := newest(); asked.Load() != 2 || got != "a:0" {
			t.Errorf("when it is old, asked %d times: %s", asked.Load(), got)
		}
		h.Close() // ends what hangs
	})
}

// A state waits for the others once, and then has what they said last; their models are forgotten
// when nobody asks.
func TestState_OfAllGateways(t *testing.T) {
	s := sourceOf(t)
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		s.Replica, s.Ask = "a", asking(t, time.Second, &asked)
		h := New(s)
		for _, want := range []time.Duration{time.Second, 0, 0} {
			begun := time.Now()
			text := body(t, get(t, h, "/ui/state?model=m"))
			if took := time.Since(begun); took != want || gjson.Get(text, "gateways.1.waiting").Int() != 7 {
				t.Errorf("after %v: %s", took, gjson.Get(text, "gateways"))
			}
			time.Sleep(Every)
		}
		time.Sleep(time.Minute)
		h.others.latest("m2", time.Now())
		if len(h.others.rounds) != 1 || h.others.rounds["m2"] == nil {
			t.Errorf("kept are %v", h.others.rounds)
		}
		h.Close()
		if text := body(t, get(t, h, "/ui/state?model=q")); gjson.Get(text, "gateways.#").Int() != 1 {
			t.Errorf("after the end: %s", gjson.Get(text, "gateways"))
		}
	})
}

// An answer that is no report is said in words that an operator understands, without addresses.
func TestRead_SaysWhyThereIsNoReport(t *testing.T) {
	for _, x := range []struct {
		answer peers.Answer
		want   string
	}{
		{peers.Answer{Err: &url.Error{URL: "http://10.0.0.3:8081", Err: errors.New("connection refused")}}, "connection refused"},
		{peers.Answer{Err: errors.New("it answered 401")}, "it answered 401"},
		{peers.Answer{Status: 404}, "its version reports nothing to others"},
		{peers.Answer{Status: 200, Body: []byte("{")}, "its report cannot be read: unexpected end of JSON input"},
		{peers.Answer{Status: 200, Body: []byte(`{"history":{"steps":[{"ttft":[99,1]}]}}`)}, "more than 64"},
	} {
		if got := read(&x.answer); !strings.Contains(got.silent, x.want) || got.report != nil {
			t.Errorf("%q, want %q", got.silent, x.want)
		}
	}
}
