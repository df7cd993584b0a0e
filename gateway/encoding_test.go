package gateway

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"io"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

const uncoded = `{"model":"m","prompt":"hi"}`

func encoded(t *testing.T, body string, by func(io.Writer) io.WriteCloser) string {
	t.Helper()
	var out bytes.Buffer
	w := by(&out)
	if _, err := io.WriteString(w, body); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func gzipped(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }

func deflated(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) }

// Bodies with a coding that is known are what they are without; what is broken, or has
// another coding, says so in the shape of the API that was called.
func TestEncoding_OfRequestBodies(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t))
	whole := encoded(t, uncoded, gzipped)
	for _, x := range []struct {
		name, coding, body string
		status             int
		says               string
	}{
		{"none", "", uncoded, 200, ""},
		{"identity", "identity", uncoded, 200, ""},
		{"gzip", "gzip", whole, 200, ""},
		{"gzip by its old name", "X-GZip", whole, 200, ""},
		{"deflate", "deflate", encoded(t, uncoded, deflated), 200, ""},
		{"gzip of nothing", "gzip", encoded(t, "", gzipped), 400, ""},
		{"no gzip", "gzip", uncoded, 400, "not valid gzip"},
		{"cut short", "gzip", whole[:len(whole)-9], 400, "not valid gzip"},
		{"a wrong sum", "gzip", whole[:len(whole)-8] + "12345678", 400, "not valid gzip"},
		{"another behind it", "gzip", whole + "x", 400, "not valid gzip"},
		{"no deflate", "deflate", whole, 400, "not valid deflate"},
		{"two", "gzip, gzip", encoded(t, whole, gzipped), 415, "gzip or deflate"},
		{"unknown", "br", uncoded, 415, "gzip or deflate"},
	} {
		got := g.post(x.body, "Content-Encoding", x.coding)
		if got.status != x.status || !strings.Contains(got.body, x.says) {
			t.Errorf("%s: %d %s", x.name, got.status, got.body)
		}
	}
	got := g.ask("POST", "/v1/messages", uncoded, "Content-Encoding", "zstd")
	if got.status != 415 || gjson.Get(got.body, "error.type").String() != "invalid_request_error" || gjson.Get(got.body, "type").String() != "error" {
		t.Errorf("of a message: %d %s", got.status, got.body)
	}
}

// A few bytes that become many are refused at the limit of bodies, and where all bodies that
// arrive have no room; nothing stays counted.
func TestEncoding_Bombs(t *testing.T) {
	of := usual(t)
	const most = 1 << 20
	of.config = func(c *Config) { c.MaxBody, c.MaxArriving = most, most-freeBytes+1 }
	g := run(t, of, complete().roundTrip, alone(t))
	padded := func(length int) string {
		return encoded(t, uncoded+strings.Repeat(" ", length-len(uncoded)), gzipped)
	}
	if got := g.post(padded(most), "Content-Encoding", "gzip"); got.status != 200 {
		t.Errorf("the longest: %d %s", got.status, got.body)
	}
	for _, length := range []int{most + 1, 50 * most} {
		if got := g.post(padded(length), "Content-Encoding", "gzip"); got.status != 413 || gjson.Get(got.body, "error.code").String() != "request_too_large" {
			t.Errorf("%d bytes: %d %s", length, got.status, got.body)
		}
	}
	g.server.bodies.now.Add(1)
	if got := g.post(padded(most), "Content-Encoding", "gzip"); got.status != 503 {
		t.Errorf("without room: %d %s", got.status, got.body)
	}
	if now := g.server.bodies.now.Add(-1); now != 0 {
		t.Errorf("%d bytes stay counted", now)
	}
}
