package main

import (
	"context"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// written counts what go-redis writes by itself.
type written int

func (w *written) Printf(context.Context, string, ...any) { *w++ }

// That Redis is away is said once by the command, and not by lines of the library beside it.
func TestRegister_KeepsTheLibrarysLinesToItself(t *testing.T) {
	var lines written
	redis.SetLogger(&lines)
	ctx, stop := context.WithCancel(t.Context())
	stop() // it only leaves the registry
	root := rootCommand()
	root.SetArgs([]string{"register", "--redis", "127.0.0.1:1", "--url", "http://10.0.0.1:8000", "--role", "both"})
	if err := root.ExecuteContext(ctx); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Error(err)
	}
	if lines != 0 {
		t.Errorf("the library wrote %d lines", lines)
	}
}

func TestCheck_KeepsTheLibrarysLinesToItself(t *testing.T) {
	var lines written
	redis.SetLogger(&lines)
	if _, err := run(t, "check", "--redis", "127.0.0.1:1", "--both", "http://127.0.0.1:1"); err == nil || !strings.Contains(err.Error(), "redis: dial") {
		t.Error(err)
	}
	if lines != 0 {
		t.Errorf("the library wrote %d lines", lines)
	}
}
