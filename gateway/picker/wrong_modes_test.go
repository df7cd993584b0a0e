package picker

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// A filter in a mode that shows no whole bodies fails each of its requests: the log says so once a minute, with their
// number.
func TestWrongModes_AreLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		p := &processor{log: slog.New(slog.NewTextHandler(&log, nil))}
		fail := func(times int) {
			for range times {
				c := &conversation{processor: p}
				if err := c.obey(&extproc.ProtocolConfiguration{RequestBodyMode: filterv3.ProcessingMode_STREAMED}, false); err == nil {
					t.Error("it is taken")
				}
			}
		}
		lines := func() int { return strings.Count(log.String(), "request_body_mode=STREAMED") }
		fail(100)
		if lines() != 1 {
			t.Errorf("%d lines of 100 requests:\n%.300s", lines(), log.String())
		}
		time.Sleep(time.Minute)
		fail(3)
		if lines() != 2 || !strings.Contains(log.String(), "refused=100") {
			t.Errorf("a minute later:\n%.500s", log.String())
		}
	})
}
