package modeltokens

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
)

// A model's token source is opened once, by the first request that asks for it, which waits for
// it only for a moment; one that is not there yet is asked for again, one that failed is not.
func TestSources_AreOpenedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		source *tokens.Source
		err    error
		takes  time.Duration
		first  bool             // the first request has it
		opened int              // times, by three requests
		why    [2]tokens.Reason // the first has none, and the later ones
	}{
		"at once":        {new(tokens.Source), nil, 0, true, 1, [2]tokens.Reason{}},
		"in a moment":    {new(tokens.Source), nil, openPatience - 1, true, 1, [2]tokens.Reason{}},
		"later":          {new(tokens.Source), nil, openPatience + 1, false, 1, [2]tokens.Reason{tokens.Loading, ""}},
		"not there yet":  {nil, tokens.NoEvents, 0, false, 3, [2]tokens.Reason{tokens.NoEvents, tokens.NoEvents}},
		"it cannot be":   {nil, errors.New("no tokenizer"), 0, false, 1, [2]tokens.Reason{tokens.Unusable, tokens.Unusable}},
		"it never opens": {nil, errors.New("no tokenizer"), time.Minute, false, 1, [2]tokens.Reason{tokens.Loading, tokens.Unusable}},
	} {
		synctest.Test(t, func(t *testing.T) {
			opened := 0
			s := New(func(model string) (*tokens.Source, error) {
				if model != "m" {
					t.Errorf("opened is %q", model)
				}
				opened++
				time.Sleep(c.takes)
				return c.source, c.err
			})
			start := time.Now()
			if got, why := s.Source("m"); (got != nil) != c.first || got != nil && got != c.source || why != c.why[0] {
				t.Errorf("%s: the first request has %v, because %q", name, got, why)
			}
			if waited := time.Since(start); waited != min(c.takes, openPatience) {
				t.Errorf("%s: the first request waited %v", name, waited)
			}
			time.Sleep(2 * time.Minute)
			for range 2 {
				if got, why := s.Source("m"); got != c.source || why != c.why[1] {
					t.Errorf("%s: a later request has %v, because %q", name, got, why)
				}
				synctest.Wait()
			}
			if opened != c.opened {
				t.Errorf("%s: it was opened %d times", name, opened)
			}
		})
	}
}

// Close waits for what is being opened, and afterwards nothing is.
func TestSources_CloseWaitsForWhatIsBeingOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opened := 0
		s := New(func(string) (*tokens.Source, error) {
			time.Sleep(time.Second)
			opened++
			return nil, tokens.Off
		})
		go s.Source("m")
		synctest.Wait()
		start := time.Now()
		s.Close()
		if opened != 1 || time.Since(start) != time.Second {
			t.Errorf("closed after %v, %d were opened", time.Since(start), opened)
		}
		if got, _ := s.Source("n"); got != nil || opened != 1 {
			t.Errorf("closed, it has %v; %d were opened", got, opened)
		}
	})
}

// Reading one model's tokenizer delays no request of another, and its own ones little.
func TestSources_OneThatIsSlowToOpenDelaysNoOther(t *testing.T) {
	release := make(chan struct{})
	sources := New(func(model string) (*tokens.Source, error) {
		if model == "slow" {
			<-release
		}
		cfg := tokens.Default()
		cfg.Model, cfg.Mode = model, tokens.Approximate
		return tokens.New(cfg, nil, nil)
	})
	defer sources.Close()
	if s, _ := sources.Source("slow"); s != nil {
		t.Error("it is there before it was opened")
	}
	quick := make(chan *tokens.Source)
	go func() {
		s, _ := sources.Source("quick")
		quick <- s
	}()
	select {
	case s := <-quick:
		if s == nil {
			t.Error("another model's source is not there")
		}
	case <-time.After(30 * time.Second):
		t.Error("another model's request waits for it")
	}
	close(release)
	for deadline := time.Now().Add(30 * time.Second); ; {
		if s, _ := sources.Source("slow"); s != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it is never there")
		}
	}
}
