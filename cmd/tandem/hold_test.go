package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/keda"
)

// Servers are scaled to zero. A request is held, KEDA is told at once that both roles
// must have a server, and when they are there it is answered.
func TestHold_RequestWaitsForServersFromZero(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) {
		cfg.gateway.Holding.For, cfg.pools.MayBeEmpty = time.Minute, true
		cfg.scaling.Planner.Prefill.Min, cfg.scaling.Planner.Decode.Min = 0, 0
		cfg.scaling.Every = 200 * time.Millisecond
	}})
	eventuallyIn(t, 30*time.Second, "the gateway has decided about the model", func() bool {
		_, err := c.node.board.Read(keda.Pool{Model: testModel, Role: "prefill"}, time.Now())
		return err == nil // a bin of demand is over
	})
	specs := c.node.cfg.specs()
	if err := c.node.sources.Set("configuration", nil); err != nil {
		t.Fatal(err)
	}
	if ready, why := c.node.fleet.Ready(); !ready {
		t.Errorf("not ready at zero, so no request would come: %s", why)
	}
	type answer struct {
		code int
		body string
		err  error
	}
	done := make(chan answer, 1)
	go func() {
		got, err := c.client.Post(c.base+"/v1/completions", "application/json",
			strings.NewReader(fmt.Sprintf(`{"model":%q,"prompt":"of the sea","max_tokens":4}`, testModel)))
		if err != nil {
			done <- answer{err: err}
			return
		}
		defer got.Body.Close()
		body, err := io.ReadAll(got.Body)
		done <- answer{got.StatusCode, string(body), err}
	}()
	for _, role := range []string{"prefill", "decode"} {
		eventuallyIn(t, 30*time.Second, role+" is wanted for a held request", func() bool {
			r, err := c.node.board.Read(keda.Pool{Model: testModel, Role: role}, time.Now())
			return err == nil && r.Replicas >= 1 && r.Held == 1
		})
	}
	select {
	case a := <-done:
		t.Fatalf("not held: %+v", a)
	default:
	}
	if err := c.node.sources.Set("configuration", specs); err != nil {
		t.Fatal(err)
	}
	if a := <-done; a.err != nil || a.code != http.StatusOK {
		t.Errorf("%+v", a)
	}
}

// What nobody has ever served is not held, and neither is more than there is room for.
func TestHold_OnlyWhatMayBeServedAgain(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) {
		cfg.gateway.Holding.For, cfg.gateway.Holding.Most = time.Minute, 0
		cfg.scaling.Every = 100 * time.Millisecond
	}})
	eventuallyIn(t, 30*time.Second, "the gateway knows the model", func() bool { return c.node.planner.Knows(testModel) })
	if err := c.node.sources.Set("configuration", nil); err != nil {
		t.Fatal(err)
	}
	for _, model := range []string{testModel, "never-heard-of"} {
		got, err := c.client.Post(c.base+"/v1/completions", "application/json",
			strings.NewReader(fmt.Sprintf(`{"model":%q,"prompt":"of the sea","max_tokens":4}`, model)))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, got.Body)
		_ = got.Body.Close()
		if got.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%s: %d", model, got.StatusCode)
		}
	}
}

func eventuallyIn(t *testing.T, patience time.Duration, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
