package zmqsub

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/testlog"
)

func TestTry_ReportsWhatAnswers(t *testing.T) {
	t.Parallel()
	p, silent := newPublisher(t, false), newPublisher(t, false)
	silent.silent.Store(true)
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	go func() {
		for {
			conn, err := mute.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			go func() { _, _ = io.Copy(io.Discard, conn) }() // until it is closed
		}
	}()
	defer mute.Close()
	http, accepting := strings.Replace(web.URL, "http", "tcp", 1), "tcp://"+mute.Addr().String()
	const nobody, patient = "tcp://127.0.0.1:1", 20 * time.Second // as long as a busy machine may need
	for _, x := range []struct {
		name     string
		feed     Feed
		patience time.Duration
		want     error
	}{
		{"all is there", Feed{Events: p.events, Replay: p.replay}, patient, nil},
		{"no replay is wanted", Feed{Events: p.events}, patient, nil},
		{"the ports are changed over", Feed{Events: p.replay, Replay: p.events}, time.Second, errWrongPeer},
		{"the engine's API", Feed{Events: http}, time.Second, errWrongPeer},
		{"it accepts and is silent", Feed{Events: accepting}, time.Second, errWrongPeer},
		{"nobody", Feed{Events: nobody}, time.Second, errNoPeer},
		{"replay nobody", Feed{Events: p.events, Replay: nobody}, time.Second, errNoPeer},
		{"replay does not answer", Feed{Events: silent.events, Replay: silent.replay}, time.Second, errNoReplay},
	} {
		if err := Try(x.feed, x.patience); !errors.Is(err, x.want) {
			t.Errorf("%s: %v, want %v", x.name, err, x.want)
		}
	}
	if err := Try(Feed{Events: "10.0.0.1:5557"}, time.Second); err == nil || !strings.Contains(err.Error(), "10.0.0.1:5557") {
		t.Errorf("an address that is none: %v", err)
	}
}

// An address at which no engine publishes is warned of once; one that is connected is not.
func TestSubscriber_WarnsIfItNeverConnects(t *testing.T) {
	t.Parallel()
	for _, connects := range []bool{true, false} {
		var log testlog.Buffer
		cfg := quick()
		cfg.ConnectWarning = 200 * time.Millisecond
		hub, err := NewHub(cfg, slog.New(slog.NewTextHandler(&log, nil)))
		must(t, err)
		t.Cleanup(func() { must(t, hub.Close()) })
		feed := Feed{Events: "tcp://127.0.0.1:1"}
		if connects {
			feed.Events = newPublisher(t, false).events
			hub.cfg.ConnectWarning = 20 * time.Second
		}
		_, sub := subscribe(t, hub, newIndex(t), "s", feed)
		const warning = "KV events never connected"
		if connects {
			connected(t, sub)
		}
		for until := time.Now().Add(30 * time.Second); !connects && !strings.Contains(log.String(), warning) && time.Now().Before(until); {
			time.Sleep(5 * time.Millisecond)
		}
		want := 1
		if connects {
			want = 0
		}
		if n := strings.Count(log.String(), warning); n != want {
			t.Errorf("connects %v: warned %d times, want %d: %s", connects, n, want, log.String())
		}
	}
}
