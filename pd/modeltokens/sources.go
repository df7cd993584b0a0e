package modeltokens

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
)

// Sources are the token sources of models, each opened when it is first asked for.
type Sources struct {
	open func(model string) (*tokens.Source, error)
	sync atomic.Pointer[Sync] // nil while nothing is passed on

	mu       sync.Mutex               // guards sources
	sources  map[string]*openedSource // nil once they are closed
	openings sync.WaitGroup
}

// openedSource is the token source of a model, once done is closed.
type openedSource struct {
	done   chan struct{}
	source *tokens.Source // nil: an error was said once, by open
	why    tokens.Reason  // why it is nil
	until  time.Time      // it is asked for again then; zero: never
}

// openPatience is how long a request waits for its model's token source. Reading a large
// tokenizer takes a second: requests go by load meanwhile, and those of other models never
// wait.
const openPatience = 50 * time.Millisecond

// openAgain is how long after a model had no source yet it is asked for again: not by each
// request, since that takes a goroutine, a timer and a thread that wakes up for it, 20 us of a
// request's CPU where few come.
const openAgain = time.Second

// New returns the sources that open gives, by base model. While a model's prompts stay unknown
// open gives none, with the tokens.Reason as the error, and is asked again a second later; after any
// other error it is not.
func New(open func(model string) (*tokens.Source, error)) *Sources {
	return &Sources{sources: make(map[string]*openedSource), open: open}
}

// Close ends the token sources, and those that are being opened as soon as they are.
func (s *Sources) Close() {
	s.mu.Lock()
	sources := s.sources
	s.sources = nil
	s.mu.Unlock()
	s.openings.Wait()
	for _, o := range sources {
		if o.source != nil {
			o.source.Close()
		}
	}
}

// Source returns the token source of a base model, or why there is none, or none yet.
// Models are those that servers serve, so there are few.
func (s *Sources) Source(model string) (*tokens.Source, tokens.Reason) {
	o := s.opened(model)
	if o == nil {
		return nil, tokens.Off
	}
	select {
	case <-o.done:
		return o.source, o.why
	default:
	}
	patience := time.NewTimer(openPatience)
	defer patience.Stop()
	select {
	case <-o.done:
		return o.source, o.why
	case <-patience.C:
		return nil, tokens.Loading
	}
}

// opened returns the source of a model and begins to open it where that was not begun; nil once
// the sources are closed.
func (s *Sources) opened(model string) *openedSource {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, known := s.sources[model]
	if known && !o.over(time.Now()) || s.sources == nil {
		return o
	}
	o = &openedSource{done: make(chan struct{})}
	s.sources[model] = o
	s.openings.Go(func() {
		defer close(o.done)
		opened, err := s.open(model)
		o.source = opened
		if errors.As(err, &o.why) { // not yet: its servers may come to publish
			o.until = time.Now().Add(openAgain)
		} else if err != nil {
			o.why = tokens.Unusable
		}
	})
	return o
}

// over says whether the source has to be asked for again.
func (o *openedSource) over(now time.Time) bool {
	select {
	case <-o.done:
		return !o.until.IsZero() && !now.Before(o.until)
	default:
		return false
	}
}

// Learn teaches a model's source the token ids of a prompt, and has them passed on where replicas
// share them.
func (s *Sources) Learn(model string, source *tokens.Source, prompt tokens.Prompt, ids []uint32) {
	source.Learn(prompt, ids)
	if sync := s.sync.Load(); sync != nil {
		sync.offer(model, source.LearnedPrefix(prompt, ids))
	}
}

// openSources returns the sources that are open, by base model.
func (s *Sources) openSources() map[string]*tokens.Source {
	open := make(map[string]*tokens.Source)
	s.mu.Lock()
	defer s.mu.Unlock()
	for model, o := range s.sources {
		select {
		case <-o.done:
			if o.source != nil {
				open[model] = o.source
			}
		default:
		}
	}
	return open
}

// Disproved returns, by base model, the contexts in which this gateway found the translation of
// prompts wrong.
func (s *Sources) Disproved(now time.Time) map[string][]tokens.Disproved {
	all := make(map[string][]tokens.Disproved)
	for model, source := range s.openSources() {
		if contexts := source.Disproved(now); len(contexts) > 0 {
			all[model] = contexts
		}
	}
	return all
}

// ReceiveDisproved takes in what another gateway reported so long ago. Said again it changes
// nothing, so that models whose source is opened later get it then.
func (s *Sources) ReceiveDisproved(reported map[string][]tokens.Disproved, age time.Duration, now time.Time) {
	if len(reported) == 0 {
		return
	}
	for model, source := range s.openSources() {
		source.ReceiveDisproved(reported[model], age, now)
	}
}
