package loadtest

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// Bounds of a run. They keep a mistyped flag from filling a disk or a night.
const (
	maxDuration = 24 * time.Hour
	maxArrivals = 50_000_000
	maxRPS      = 100_000
)

// Endpoint is the OpenAI path that is asked.
type Endpoint string

// The endpoints that the generator speaks.
const (
	Chat        Endpoint = "chat"        // POST /v1/chat/completions
	Completions Endpoint = "completions" // POST /v1/completions
)

func (e Endpoint) path() string {
	if e == Completions {
		return "/v1/completions"
	}
	return "/v1/chat/completions"
}

// Arrivals names the law of the gaps between arrivals.
type Arrivals string

// The arrival laws. A trace brings its own times.
const (
	Poisson  Arrivals = "poisson"  // exponential gaps with mean 1/RPS
	Constant Arrivals = "constant" // every gap is 1/RPS
)

// SLO holds the limits of one good request. A zero limit is not asked for.
type SLO struct {
	TTFT time.Duration // time to first token
	ITL  time.Duration // longest gap of the request
	TPOT time.Duration // mean time per output token after the first
	E2E  time.Duration // whole answer
}

func (s SLO) any() bool { return s != SLO{} }

// Config describes one run. DefaultConfig gives the values of the flags.
type Config struct {
	URL         string      // base of the endpoint, without /v1
	Model       string      // empty: the first of /v1/models
	Endpoint    Endpoint    // chat or completions
	Stream      bool        // false: whole answers, which have no TTFT, ITL and TPOT
	Header      http.Header // sent with every request, e.g. Authorization
	AllowRemote bool        // false: only loopback addresses are dialled

	Arrivals Arrivals      // ignored with a trace
	RPS      float64       // requests per second; ignored with a trace
	Duration time.Duration // arrivals end here; 0: where the trace ends
	Limit    int           // at most so many arrivals; 0: no such limit
	Seed     uint64        // of arrivals, lengths and synthetic text

	PromptTokens       Length        // of one user turn, without shared prefix and history
	OutputTokens       Length        // max_tokens
	WordsPerToken      float64       // of the generated text; 0: ask the server's /tokenize
	SharedPrefixTokens int           // the same text before every conversation
	Turns              int           // questions in one conversation
	ThinkTime          time.Duration // least time between an answer and the next question
	IgnoreEOS          bool          // ask the engine to go on to max_tokens

	Trace     string  // path of a Mooncake JSONL file; empty: synthetic load
	TimeScale float64 // multiplies the trace's arrival times: 0.1 is ten times as fast

	MaxInFlight int           // an arrival beyond it fails with kind client_bound
	Timeout     time.Duration // of one request, from sending to its end
	SLO         SLO

	OnEnd func(Ended) // called when a request has ended, from many goroutines; may be nil
}

// Ended is how one request ended.
type Ended struct {
	Due    time.Duration // planned arrival, since the start of the run
	Kind   Kind          // OK: a whole answer
	Detail string        // of a failure
	TTFT   time.Duration // 0: no content, or not streamed
	E2E    time.Duration // 0: no whole answer
	Took   time.Duration // from sending to the end, however it ended; 0: not sent
}

// DefaultConfig returns the values that the flags start from.
func DefaultConfig() Config {
	return Config{
		URL:          "http://127.0.0.1:8080",
		Endpoint:     Chat,
		Stream:       true,
		Arrivals:     Poisson,
		RPS:          20,
		Duration:     30 * time.Second,
		Seed:         1,
		PromptTokens: FixedLength(512),
		OutputTokens: FixedLength(64),
		Turns:        1,
		TimeScale:    1,
		MaxInFlight:  4096,
		Timeout:      2 * time.Minute,
	}
}

// Validate returns every fault of the configuration at once.
func (c Config) Validate() error {
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	check(c.Endpoint == Chat || c.Endpoint == Completions, "endpoint %q: want chat or completions", c.Endpoint)
	check(c.MaxInFlight > 0, "max-in-flight %d: want 1 or more", c.MaxInFlight)
	check(c.Timeout > 0, "timeout %v: want more than 0", c.Timeout)
	check(c.Limit >= 0, "limit %d: want 0 or more", c.Limit)
	check(c.Duration >= 0 && c.Duration <= maxDuration, "duration %v: want at most %v", c.Duration, maxDuration)
	check(c.SLO.TTFT >= 0 && c.SLO.ITL >= 0 && c.SLO.TPOT >= 0 && c.SLO.E2E >= 0, "an SLO is negative")
	check(c.Stream || c.SLO.TTFT == 0 && c.SLO.ITL == 0 && c.SLO.TPOT == 0, "an SLO of TTFT, ITL or TPOT needs a stream")
	check(c.WordsPerToken == 0 || c.WordsPerToken >= 0.01 && c.WordsPerToken <= 10, "words-per-token %v: want 0.01 to 10, or 0", c.WordsPerToken)
	if err := c.checkTarget(); err != nil {
		faults = append(faults, err)
	}
	if c.Trace != "" {
		check(c.TimeScale > 0, "time-scale %v: want more than 0", c.TimeScale)
		check(c.Turns == 1, "turns %d: a trace brings its own requests", c.Turns)
		check(c.SharedPrefixTokens == 0, "shared-prefix-tokens %d: a trace brings its own prefixes", c.SharedPrefixTokens)
		return errors.Join(faults...)
	}
	check(c.Arrivals == Poisson || c.Arrivals == Constant, "arrivals %q: want poisson or constant", c.Arrivals)
	check(c.RPS > 0 && c.RPS <= maxRPS, "rps %v: want more than 0 and at most %d", c.RPS, maxRPS)
	check(c.Duration > 0, "duration %v: want more than 0", c.Duration)
	check(c.Limit > 0 || c.RPS*c.Duration.Seconds() <= maxArrivals, "rps x duration: want at most %d arrivals", maxArrivals)
	check(c.Turns >= 1, "turns %d: want 1 or more", c.Turns)
	check(c.ThinkTime >= 0, "think-time %v: want 0 or more", c.ThinkTime)
	check(c.SharedPrefixTokens >= 0 && c.SharedPrefixTokens <= maxTokens, "shared-prefix-tokens %d: want 0 to %d", c.SharedPrefixTokens, maxTokens)
	return errors.Join(faults...)
}

// checkTarget refuses a base URL that cannot be used or is not allowed, so that
// nobody loads somebody else's host by a slip of the keyboard. The dialer checks
// again what a name has resolved to.
func (c Config) checkTarget() error {
	u, err := url.Parse(c.URL)
	if err != nil {
		return fmt.Errorf("url: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("url %q: want http://HOST:PORT", c.URL)
	}
	if strings.HasSuffix(strings.TrimRight(u.Path, "/"), "/v1") {
		return fmt.Errorf("url %q: want the base without /v1", c.URL)
	}
	if c.AllowRemote || u.Hostname() == "localhost" {
		return nil
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil && addr.Unmap().IsLoopback() {
		return nil
	}
	return fmt.Errorf("url %q is not on this machine; --allow-remote permits it", c.URL)
}
