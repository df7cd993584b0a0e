package pd

import (
	"errors"
	"fmt"
	"time"

	"github.com/tandem-gateway/tandem/pd/answerkv"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/firsttoken"
	"github.com/tandem-gateway/tandem/pools/permodel"
)

// Config is what an operator sets of how requests are served.
type Config struct {
	BindConfig
	LegConfig
}

// LegConfig is how long legs may take and how often they are tried.
type LegConfig struct {
	PrefillTimeout    time.Duration // the whole prefill leg
	FirstEventTimeout time.Duration // decode, until the first content event of a stream
	IdleTimeout       time.Duration // between two events of a stream
	AnswerTimeout     time.Duration // decode of an answer that is not streamed
	// AnswerPatience is how long a prefill that reads an answer's KV may be silent beyond four times what
	// is predicted of it: an engine that is not set up for that never answers.
	AnswerPatience  time.Duration
	MaxRetries      int     // legs tried again for one request
	RetryRatio      float64 // retries per request over ten seconds, 0..1
	RetryFloor      int     // retries per ten seconds whatever the traffic
	ContinueStreams bool    // continue streams that break on another pair, where engines report token ids
	ContinueByText  bool    // and chats by their text where they report none, which is not exact
	EnginePriority  bool    // engines schedule by priority, and are told which
	// StrictHandoffs: a hand-off that names a host which is not known to be the prefill
	// server's is withheld from decode.
	StrictHandoffs bool
}

// BindConfig is what bounds the choice of servers.
type BindConfig struct {
	HandoffAge time.Duration // a hand-off older than this is not used
	// UnresponsiveWait is how long a request waits at most for servers that are unresponsive,
	// when no other can take it, and how long a role may be down before the gateway is not
	// ready.
	UnresponsiveWait time.Duration
	Objective        Objectives // what requests are served for
	// TTFT and ITL are objectives for each request, 0 is none; SLO says whose count.
	TTFT, ITL permodel.Setting[time.Duration]
	// EnforceDisaggregation: what no pair can serve is refused, and not decoded alone.
	EnforceDisaggregation bool
	AnswerKV              answerkv.Use      // of which servers' answers the next turn's prefill reads the KV
	AnswerLife            time.Duration     // how long after its answer, less than engines keep it
	FirstToken            firsttoken.Source // which leg says the first token of an answer
	FetchKV               bool              // prefill fetches from decode servers what it lacks of prompts
	ProtectKV             bool              // half of the caches that prefill fetches from are protected from new prompts
	Pieces                cost.Pieces       // how long prompts are cut where requests wait for their turn
	// DecodePieces is how long the streams of a decode server may stand still at a time while it
	// computes a prompt, where the request has no objective for gaps; 0: prompts are computed there
	// whole.
	DecodePieces time.Duration
}

// defaultDecodePieces is a gap that the reader of a stream hardly notices.
const defaultDecodePieces = 100 * time.Millisecond

// DefaultConfig keeps hand-offs to a third of vLLM's 30 s lease.
func DefaultConfig() Config {
	return Config{
		BindConfig: BindConfig{HandoffAge: 10 * time.Second, UnresponsiveWait: 10 * time.Second, FirstToken: firsttoken.FromPrefill, AnswerKV: answerkv.Reported, AnswerLife: 450 * time.Second, FetchKV: true, ProtectKV: true, Pieces: cost.DefaultPieces, DecodePieces: defaultDecodePieces},
		LegConfig: LegConfig{
			PrefillTimeout:    120 * time.Second,
			AnswerPatience:    30 * time.Second, // an engine at its first transfer stands still for some eleven
			FirstEventTimeout: 60 * time.Second,
			IdleTimeout:       30 * time.Second,
			AnswerTimeout:     600 * time.Second,
			MaxRetries:        3,
			RetryRatio:        0.2,
			RetryFloor:        10,
			ContinueStreams:   true,
		},
	}
}

// Validate reports what is wrong with the configuration, nil if nothing.
func (c Config) Validate() error {
	for name, d := range map[string]time.Duration{
		"prefill-timeout": c.PrefillTimeout, "first-event-timeout": c.FirstEventTimeout,
		"idle-timeout": c.IdleTimeout, "answer-timeout": c.AnswerTimeout, "handoff-age": c.HandoffAge,
	} {
		if d <= 0 {
			return fmt.Errorf("%s must be positive", name)
		}
	}
	if c.UnresponsiveWait < 0 {
		return errors.New("doubt-wait must not be negative")
	}
	if c.MaxRetries < 0 || c.RetryRatio < 0 || c.RetryRatio > 1 || c.RetryFloor < 0 {
		return errors.New("max-retries and retry-floor must not be negative, retry-ratio is 0 to 1")
	}
	if c.DecodePieces < 0 {
		return errors.New("decode-pieces must not be negative")
	}
	if c.AnswerLife <= 0 {
		return errors.New("answer-kv-life must be positive")
	}
	return errors.Join(c.Pieces.Validate(), c.FirstToken.Validate(), c.AnswerKV.Validate())
}

// BindMode says when a request gets its servers.
type BindMode string

const (
	OnArrival BindMode = "arrival" // at once
	Late      BindMode = "late"    // when the prefill server that is best for it is about to be free
)

// Validate reports what is wrong with the binding, nil if nothing.
func (b BindMode) Validate() error {
	if b != OnArrival && b != Late {
		return fmt.Errorf("binding %q: want arrival or late", string(b))
	}
	return nil
}
