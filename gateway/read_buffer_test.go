package gateway

import (
	"bufio"
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp/fasthttputil"
)

// While a stream goes out its connection's buffer is another's, and behind it the next request has one as
// long: fasthttp's reader is found where it was.
func TestReadBuffer_IsLentWhileAStreamIsOpen(t *testing.T) {
	const size = 16 << 10
	spare := newSpareBuffers(size)
	var least, most []int // of the reader, while it is lent and behind
	app := fiber.New(fiber.Config{StreamRequestBody: true, ReduceMemoryUsage: true, DisableStartupMessage: true, ReadBufferSize: size})
	app.Post("/", func(c *fiber.Ctx) error {
		b := readBufferOf(c.Context().Conn(), c.Context().RequestBodyStream(), spare)
		if b.reader == nil || b.reader.Size() != size {
			t.Errorf("fasthttp's reader is not where it was: %v", b.reader)
			return nil
		}
		before := c.Body()
		b.lend()
		least = append(least, b.reader.Size())
		b.takeBack()
		b.takeBack() // twice is as good as once
		most = append(most, b.reader.Size())
		return c.Send(before)
	})
	ln := fasthttputil.NewInmemoryListener()
	defer func() { _ = app.Shutdown() }()
	go func() { _ = app.Listener(ln) }()
	conn, err := ln.Dial()
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	for _, length := range []int{10, 12 << 10, 10} {
		body, head := strings.Repeat("b", length), strings.Repeat("h", length)
		req, _ := http.NewRequest(http.MethodPost, "http://x/", strings.NewReader(body))
		req.Header.Set("X-Long", head)
		if err := req.Write(conn); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(in, req)
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		_, _ = got.ReadFrom(resp.Body)
		if resp.StatusCode != 200 || got.String() != body {
			t.Errorf("%d bytes: %d, %d bytes came back", length, resp.StatusCode, got.Len())
		}
	}
	for i := range least {
		if least[i] > 16 || most[i] != size {
			t.Errorf("request %d: %d bytes while it is lent, %d behind", i, least[i], most[i])
		}
	}
	for range 2 * mostSpare { // more than are kept
		b := readBuffer{reader: bufio.NewReaderSize(nil, size), spare: spare}
		b.lend()
	}
	if len(least) != 3 {
		t.Errorf("%d requests came", len(least))
	}
}

// What another request is waiting in is not lent, nor what is not fasthttp's.
func TestReadBuffer_IsKeptWhereItIsNeeded(t *testing.T) {
	spare := newSpareBuffers(64)
	in := bufio.NewReaderSize(strings.NewReader("GET / HTTP/1.1"), 64)
	_, _ = in.Peek(1)
	type stream struct {
		*strings.Reader
		reader *bufio.Reader
	}
	for name, b := range map[string]readBuffer{
		"a request waits":    readBufferOf(nil, &stream{strings.NewReader(""), in}, spare),
		"no body":            readBufferOf(nil, nil, spare),
		"another's body":     readBufferOf(nil, strings.NewReader(""), spare),
		"of another size":    readBufferOf(nil, &stream{strings.NewReader(""), bufio.NewReader(nil)}, spare),
		"a body of no field": readBufferOf(nil, struct{ *strings.Reader }{strings.NewReader("")}, spare),
	} {
		b.lend()
		if b.lent || len(spare.large) > 0 {
			t.Errorf("%s: it was lent", name)
		}
		b.takeBack()
	}
	if rest, _ := in.ReadString('1'); rest != "GET / HTTP/1" {
		t.Errorf("%q is left", rest)
	}
}
