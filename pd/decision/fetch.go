package decision

import (
	"fmt"
	"time"
)

// FetchOutcome is what became of KV that prefill was to fetch from another server.
type FetchOutcome string

// The outcomes of a fetch.
const (
	Fetched    FetchOutcome = "fetched"
	Recomputed FetchOutcome = "recomputed"  // the same, but the other server had lost some of it, and computed that
	NotFetched FetchOutcome = "not_fetched" // a leg failed, or took too long: prefill computes what it lacks
)

// Fetch is that prefill was to fetch the KV of the prompt's beginning from another server. Its zero value: it was not.
type Fetch struct {
	Server  string // that held it
	Tokens  int    // of the prompt, that prefill lacked
	Outcome FetchOutcome
	Took    time.Duration
}

// Came reports whether prefill has the tokens.
func (f Fetch) Came() bool { return f.Outcome == Fetched || f.Outcome == Recomputed }

// String says it for people, "" where nothing was to be fetched.
func (f Fetch) String() string {
	switch f.Outcome {
	case Fetched:
		return fmt.Sprintf("prefill fetched %d tokens from %s in %d ms", f.Tokens, f.Server, f.Took.Milliseconds())
	case Recomputed:
		return fmt.Sprintf("prefill fetched %d tokens from %s, which had lost some and computed them, in %d ms", f.Tokens, f.Server, f.Took.Milliseconds())
	case NotFetched:
		return fmt.Sprintf("prefill was to fetch %d tokens from %s, and failed after %d ms", f.Tokens, f.Server, f.Took.Milliseconds())
	}
	return ""
}
