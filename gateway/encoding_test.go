package gateway

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/pd/bytebudget"
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

func brotlied(w io.Writer) io.WriteCloser { return brotli.NewWriter(w) }

// zstded compresses with a window of some bytes at most.
func zstded(window int) func(io.Writer) io.WriteCloser {
	return func(w io.Writer) io.WriteCloser {
		z, err := zstd.NewWriter(w, zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(1))
		if err != nil {
			panic(err) // a window that it does not have
		}
		return z
	}
}

func deflated(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) }

// Bodies with a coding that is known are what they are without; what is broken, or has
// another coding, says so in the shape of the API that was called.
func TestEncoding_OfRequestBodies(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t))
	whole := encoded(t, uncoded, gzipped)
	zstdOf := zstded(1 << 20)
	brotlied, zstded := encoded(t, uncoded, brotlied), encoded(t, uncoded, zstdOf)
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
		{"two", "gzip, gzip", encoded(t, whole, gzipped), 415, "gzip, deflate, br, zstd"},
		{"br", "br", brotlied, 200, ""},
		{"no br", "br", whole, 400, "not valid br"},
		{"br cut short", "br", brotlied[:len(brotlied)-1], 400, "not valid br"},
		{"something behind br", "br", brotlied + "x", 400, "not valid br"},
		{"zstd", "ZStd", zstded, 200, ""},
		{"zstd in two frames", "zstd", encoded(t, uncoded[:9], zstdOf) + encoded(t, uncoded[9:], zstdOf), 200, ""},
		{"no zstd", "zstd", whole, 400, "not valid zstd"},
		{"zstd cut short", "zstd", zstded[:len(zstded)-1], 400, "not valid zstd"},
		{"a wrong sum of zstd", "zstd", zstded[:len(zstded)-4] + "1234", 400, "not valid zstd"},
		{"something behind zstd", "zstd", zstded + "xxxxx", 400, "not valid zstd"},
		{"zstd of nothing", "zstd", "", 400, "empty"},
		{"unknown", "lzma", uncoded, 415, "gzip, deflate, br, zstd"},
	} {
		got := g.post(x.body, "Content-Encoding", x.coding)
		if got.status != x.status || !strings.Contains(got.body, x.says) {
			t.Errorf("%s: %d %s", x.name, got.status, got.body)
		}
	}
	got := g.ask("POST", "/v1/messages", uncoded, "Content-Encoding", "lzma")
	if got.status != 415 || gjson.Get(got.body, "error.type").String() != "invalid_request_error" || gjson.Get(got.body, "type").String() != "error" {
		t.Errorf("of a message: %d %s", got.status, got.body)
	}
}

// worded is a request of so many bytes, of letters by chance, which no coding makes much shorter.
func worded(length int) string {
	letters, text := rand.New(rand.NewPCG(1, 2)), []byte(`{"model":"m","prompt":"`)
	for len(text) < length-len(`"}`) {
		text = append(text, byte('a'+letters.IntN(16)))
	}
	return string(text) + `"}`
}

// A few bytes that become many are refused at the limit of bodies, or far below it where they become too many times as
// many, and where all bodies that arrive have no room; nothing stays counted.
func TestEncoding_Bombs(t *testing.T) {
	of := usual(t)
	const most = 1 << 20
	of.config = func(c *Config) { c.MaxBody, c.MaxArriving = most, most-freeBytes+1 }
	g := run(t, of, complete().roundTrip, alone(t))
	for coding, by := range map[string]func(io.Writer) io.WriteCloser{"gzip": gzipped, "deflate": deflated, "br": brotlied, "zstd": zstded(8 << 20)} {
		padded := func(length int) string {
			return encoded(t, uncoded+strings.Repeat(" ", length-len(uncoded)), by)
		}
		for name, body := range map[string]string{"the longest": encoded(t, worded(most), by), "a short one of spaces": padded(freeBytes)} {
			if got := g.post(body, "Content-Encoding", coding); got.status != 200 {
				t.Errorf("%s of %s: %d %s", name, coding, got.status, got.body)
			}
		}
		for name, body := range map[string]string{
			"longer than the longest": encoded(t, worded(most+1), by), "hundreds of times as long as it came": padded(freeBytes + 1), "and as long as may be": padded(most),
		} {
			got := g.post(body, "Content-Encoding", coding)
			if got.status != 413 || gjson.Get(got.body, "error.code").String() != "request_too_large" || strings.Contains(got.body, "100 times") == strings.HasPrefix(name, "longer") {
				t.Errorf("%s, %s: %d %s", name, coding, got.status, got.body)
			}
		}
		if !g.server.bodies.Take("", 0, 1) {
			t.Fatal("there is room for one byte")
		}
		if got := g.post(encoded(t, worded(most), by), "Content-Encoding", coding); got.status != 503 {
			t.Errorf("%s without room: %d %s", coding, got.status, got.body)
		}
		g.server.bodies.GiveBack("", 1)
		if now := g.server.bodies.Taken(); now != 0 {
			t.Errorf("%d bytes of %s stay counted", now, coding)
		}
	}
}

// decoder decodes without a network, bodies of this length at most.
func decoder(most int) *Server {
	return &Server{cfg: Config{MaxBody: most}, bodies: bytebudget.New(1 << 30), decoding: make(chan struct{}, 1)}
}

// A window that RFC 9659 does not allow is refused before there is memory for it; the longest
// that it allows is taken, and costs that once.
func TestEncoding_WindowsOfZstd(t *testing.T) {
	s := decoder(64 << 20)
	text := worded(9 << 20)
	for window, status := range map[int]int{8 << 20: 0, 16 << 20: 400} {
		body := []byte(encoded(t, text, zstded(window)))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := s.decode("", body, "zstd")
		runtime.ReadMemStats(&after)
		var bad *badRequest
		if errors.As(err, &bad) != (status != 0) || status != 0 && (bad.status != status || !strings.Contains(bad.message, "8388608 bytes")) {
			t.Errorf("a window of %d MiB: %v", window>>20, err)
		}
		if took := (after.TotalAlloc - before.TotalAlloc) >> 20; status != 0 && took > 2 || took > 64 {
			t.Errorf("a window of %d MiB took %d MiB", window>>20, took)
		}
	}
}

// Requests that must be decoded are read one after the other where there is one turn, whatever became of those before,
// and others beside them; a client that leaves waits no longer.
func TestEncoding_DecodersTakeTurns(t *testing.T) {
	of := usual(t)
	of.before = func(s *Server) { s.decoding = make(chan struct{}, 1) }
	g := run(t, of, complete().roundTrip, alone(t))
	done, err := g.server.beginDecoding(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	leave()
	if _, err := g.server.beginDecoding(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("beside another: %v", err)
	}
	answered := make(chan reply, 1)
	go func() { answered <- g.post(encoded(t, uncoded, gzipped), "Content-Encoding", "gzip") }()
	if got := g.post(uncoded); got.status != 200 {
		t.Errorf("one that needs no turn: %d %s", got.status, got.body)
	}
	select {
	case got := <-answered:
		t.Errorf("it did not wait for its turn: %d %s", got.status, got.body)
	default:
	}
	done()
	if got := <-answered; got.status != 200 {
		t.Errorf("behind another: %d %s", got.status, got.body)
	}
	for _, body := range []string{encoded(t, `{"model"`, gzipped), "no gzip", encoded(t, uncoded, gzipped)} {
		g.post(body, "Content-Encoding", "gzip")
		if n := len(g.server.decoding); n != 0 {
			t.Errorf("after %.20q %d still decode", body, n)
		}
	}
}

// Whatever a client sends, decoding it ends with a body within the limit or with a refusal, and
// what was encoded comes back.
func FuzzDecode(f *testing.F) {
	codings := []string{"gzip", "deflate", "br", "zstd"}
	encoders := []func(io.Writer) io.WriteCloser{gzipped, deflated, brotlied, zstded(1 << 20)}
	for i := range codings {
		var out bytes.Buffer
		w := encoders[i](&out)
		_, _ = io.WriteString(w, uncoded+strings.Repeat(uncoded, 99))
		_ = w.Close()
		f.Add(i, out.Bytes())
	}
	s := decoder(1 << 16)
	f.Fuzz(func(t *testing.T, i int, body []byte) {
		coding := codings[uint(i)%uint(len(codings))]
		decoded, err := s.decode("", body, coding)
		var bad *badRequest
		if err != nil && !errors.As(err, &bad) || len(decoded) > s.cfg.MaxBody || s.bodies.Taken() != 0 || len(s.decoding) != 0 {
			t.Fatalf("%s: %d bytes, %v, %d counted", coding, len(decoded), err, s.bodies.Taken())
		}
		if len(body) > s.cfg.MaxBody {
			return
		}
		back, err := s.decode("", []byte(encoded(t, string(body), encoders[uint(i)%uint(len(codings))])), coding)
		if err != nil || !bytes.Equal(back, body) {
			t.Fatalf("%s: %d bytes come back as %d, %v", coding, len(body), len(back), err)
		}
	})
}
