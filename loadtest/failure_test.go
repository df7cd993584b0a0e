package loadtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"syscall"
	"testing"
)

func TestKindOf(t *testing.T) {
	request := func(err error) error { return &url.Error{Op: "Post", URL: "http://127.0.0.1", Err: err} }
	ended, end := context.WithCancel(context.Background())
	end()
	for _, c := range []struct {
		ctx  context.Context
		err  error
		want Kind
	}{
		{t.Context(), request(os.NewSyscallError("connect", syscall.ECONNREFUSED)), Refused},
		{t.Context(), request(os.NewSyscallError("read", syscall.ECONNRESET)), Reset},
		{t.Context(), request(os.NewSyscallError("write", syscall.EPIPE)), Reset},
		{t.Context(), request(io.EOF), Reset},
		{t.Context(), io.ErrUnexpectedEOF, Reset},
		{t.Context(), request(errors.New("http: server closed idle connection")), Reset},
		{t.Context(), request(context.DeadlineExceeded), Timeout},
		{t.Context(), os.ErrDeadlineExceeded, Timeout},
		{t.Context(), request(os.NewSyscallError("socket", syscall.EMFILE)), Transport},
		{t.Context(), fmt.Errorf("read: %w", failuref(Malformed, "x")), Malformed},
		{ended, request(context.Canceled), Interrupted},
		{ended, io.ErrUnexpectedEOF, Interrupted},
	} {
		if got := kindOf(c.ctx, c.err); got != c.want {
			t.Errorf("%v: got %q, want %q", c.err, got, c.want)
		}
	}
}
