package pd

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
)

// A model's token source is opened once, by the first request that asks for it, which waits for
// it only for a moment; one that is not there yet is asked for again, one that failed is not.
func TestLocality_OpensASourceOnce(t *testing.T) {
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
			l := NewLocality(nil, func(model string) (*tokens.Source, error) {
				if model != "m" {
					t.Errorf("opened is %q", model)
				}
				opened++
				time.Sleep(c.takes)
				return c.source, c.err
			})
			start := time.Now()
			if got, why := l.source("m"); (got != nil) != c.first || got != nil && got != c.source || why != c.why[0] {
				t.Errorf("%s: the first request has %v, because %q", name, got, why)
			}
			if waited := time.Since(start); waited != min(c.takes, openPatience) {
				t.Errorf("%s: the first request waited %v", name, waited)
			}
			time.Sleep(2 * time.Minute)
			for range 2 {
				if got, why := l.source("m"); got != c.source || why != c.why[1] {
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
func TestLocality_CloseWaitsForWhatIsBeingOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opened := 0
		l := NewLocality(nil, func(string) (*tokens.Source, error) {
			time.Sleep(time.Second)
			opened++
			return nil, tokens.Off
		})
		go l.source("m")
		synctest.Wait()
		start := time.Now()
		l.Close()
		if opened != 1 || time.Since(start) != time.Second {
			t.Errorf("closed after %v, %d were opened", time.Since(start), opened)
		}
		if got, _ := l.source("n"); got != nil || opened != 1 {
			t.Errorf("closed, it has %v; %d were opened", got, opened)
		}
	})
}
