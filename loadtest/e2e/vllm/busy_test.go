package vllm

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// healthy reports what is wrong with an engine, nil if nothing.
func healthy(e *engine) error {
	resp, err := client.Get(e.url + "/health")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", resp.Status)
	}
	return nil
}

// signal reaches an engine and the processes that compute for it.
func (e *engine) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	for _, pid := range append(descendants(e.process.Cmd.Process.Pid), e.process.Cmd.Process.Pid) {
		if err := syscall.Kill(pid, s); err != nil {
			t.Errorf("%v to %d: %v", s, pid, err)
		}
	}
}

// state is what the gateway thinks of one server.
type state struct {
	ID           string
	Up           bool
	Unresponsive bool `json:"in_doubt"`
}

// watch notes until it is stopped whether a server was unresponsive or taken out.
func watch(t *testing.T, g gateway, host string) (stop func() (unresponsive, down bool)) {
	done, ended := make(chan struct{}), make(chan struct{})
	var unresponsive, down bool
	go func() {
		defer close(ended)
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			select {
			case <-done:
				tick.Stop()
				return
			case <-tick.C:
			}
			var servers []state
			if process.JSON(g.admin+"/debug/servers", &servers) != nil {
				continue
			}
			for _, s := range servers {
				if s.ID == host {
					unresponsive, down = unresponsive || s.Unresponsive, down || !s.Up
				}
			}
		}
	}()
	return func() (bool, bool) {
		close(done)
		<-ended
		return unresponsive, down
	}
}

// throttle lets an engine compute for a fifth of the time, as a CPU quota does, until it is
// stopped.
func (e *engine) throttle(t *testing.T) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			e.signal(t, syscall.SIGSTOP)
			time.Sleep(400 * time.Millisecond)
			e.signal(t, syscall.SIGCONT)
			select {
			case <-done:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

// latePings asks for an engine's health, as probes do, until it is stopped, and counts how
// often that took longer than they wait.
func latePings(e *engine, within time.Duration) (stop func() (late, all int)) {
	done, ended := make(chan struct{}), make(chan struct{})
	var late, all int
	go func() {
		defer close(ended)
		for tick := time.NewTicker(within); ; {
			select {
			case <-done:
				tick.Stop()
				return
			case <-tick.C:
			}
			began := time.Now()
			if err := healthy(e); err != nil || time.Since(began) > within {
				late++
			}
			all++
		}
	}()
	return func() (int, int) {
		close(done)
		<-ended
		return late, all
	}
}

// busyIsNotDead: the only decode server computes all the time, on a fraction of a CPU, and
// answers probes late. It loses neither what it has nor what comes.
func busyIsNotDead(t *testing.T, prefill, decode *engine) {
	g := startGateway(t, []*engine{prefill}, []*engine{decode}, "probe-interval: 200ms", "probe-timeout: 200ms")
	stop, pings, relieve := watch(t, g, decode.host()), latePings(decode, 200*time.Millisecond), decode.throttle(t)
	var failed atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for i := range 12 {
		time.Sleep(300 * time.Millisecond)
		all.Go(func() {
			a, err := tryAsk(g.url, map[string]any{"prompt": text(uint64(9000+i), 600), "max_tokens": 150, "ignore_eos": true, "stream": true}, nil)
			if err != nil || !a.done || a.output != 150 {
				t.Errorf("%d tokens, %v", a.output, err)
				failed.Add(1)
			}
		})
	}
	all.Wait()
	relieve()
	unresponsive, down := stop()
	late, asked := pings()
	t.Logf("12 streams on one pair in %.1f s, %d of %d looks at decode's health took longer than a probe: %d failed; unresponsive %v, down %v",
		time.Since(began).Seconds(), late, asked, failed.Load(), unresponsive, down)
	if down {
		t.Error("a busy server was declared down")
	}
	if late < 5 {
		t.Error("it was not busy")
	}
}

// stoppedIsNotDead: the only decode server stands still in the midst of a stream, for longer
// than two probes wait, and a request comes meanwhile.
func stoppedIsNotDead(t *testing.T, prefill, decode *engine) {
	g := startGateway(t, []*engine{prefill}, []*engine{decode})
	stop := watch(t, g, decode.host())
	body := func(seed uint64) map[string]any {
		return map[string]any{"prompt": text(seed, 300), "max_tokens": 300, "ignore_eos": true, "stream": true}
	}
	second := make(chan error, 1)
	got, err := tryAsk(g.url, body(9500), func(pieces int) {
		if pieces != 40 {
			return
		}
		decode.signal(t, syscall.SIGSTOP)
		go func() {
			time.Sleep(3 * time.Second)
			_, err := tryAsk(g.url, map[string]any{"prompt": text(9600, 100), "max_tokens": 8}, nil)
			second <- err
		}()
		time.Sleep(7 * time.Second)
		decode.signal(t, syscall.SIGCONT)
	})
	late := <-second
	unresponsive, down := stop()
	t.Logf("decode stood still for 7 s: its stream ended with %d tokens, %v; a request meanwhile: %v; unresponsive %v, down %v", got.output, err, late, unresponsive, down)
	if err != nil || got.output != 300 || late != nil || down {
		t.Error("a server that stood still was taken for dead")
	}
	if !unresponsive {
		t.Error("it was not noticed")
	}
}
