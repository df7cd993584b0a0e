package http1

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"
)

// releases says when something was released.
type releases chan struct{}

func (r releases) Release() { r <- struct{}{} }

func bodyOf(parts iter.Seq[[]byte]) *Body {
	b := new(Body)
	b.Put(parts)
	return b
}

// Who has the memory of a request's body hears once when nothing reads it any more: of a short one, of a long one
// that a goroutine of its own writes, and of one that is never sent. Another transport may read on.
func TestBody_SaysWhenItIsUnread(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	defer server.Close()
	var ours Transport
	defer ours.CloseIdleConnections()
	gone, leave := context.WithCancelCause(t.Context())
	leave(errors.New("left"))
	for name, x := range map[string]struct {
		by     http.RoundTripper
		ctx    context.Context
		size   int
		unread bool
	}{
		"short":             {&ours, t.Context(), 100, true},
		"long":              {&ours, t.Context(), 300 << 10, true},
		"not sent":          {&ours, gone, 300 << 10, true},
		"another transport": {http.DefaultTransport, t.Context(), 300 << 10, false},
	} {
		text := bytes.Repeat([]byte("x"), x.size)
		body, said := bodyOf(slices.Values([][]byte{text[:1], text[1:]})), make(releases, 2)
		body.WhenUnread(said)
		r, err := http.NewRequestWithContext(x.ctx, http.MethodPost, server.URL, body)
		if err != nil {
			t.Fatal(err)
		}
		r.ContentLength = int64(x.size)
		if resp, err := x.by.RoundTrip(r); err == nil {
			echo, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || !bytes.Equal(echo, text) {
				t.Errorf("%s: %d bytes came back, %v", name, len(echo), err)
			}
		} else if x.ctx.Err() == nil {
			t.Errorf("%s: %v", name, err)
		}
		if x.unread {
			select {
			case <-said:
			case <-time.After(30 * time.Second):
				t.Errorf("%s: it is read still", name)
			}
		}
		if len(said) > 0 {
			t.Errorf("%s: it is unread once more", name)
		}
	}
}
