package answerkv

import "fmt"

// Outcome is what became of the KV of an answer that an engine kept.
type Outcome string

const (
	Kept     Outcome = "kept"     // it is known what it is good for
	Read     Outcome = "read"     // by the next turn's prefill
	Late     Outcome = "late"     // it was priced, and was gone when it came to reading
	Computed Outcome = "computed" // prefill was to read it, and computed the tokens
	Failed   Outcome = "failed"   // likewise, and failed first
)

// Reading is that a prefill was to read the KV of an answer, and what came of it. Its zero value is
// that it was not.
type Reading struct {
	Server  string // that kept it
	Tokens  int    // leading ones of the prompt
	Outcome Outcome
}

// String says it for people, "" where nothing was to be read.
func (r Reading) String() string {
	switch r.Outcome {
	case Read:
		return fmt.Sprintf("prefill read %d tokens from %s", r.Tokens, r.Server)
	case Late:
		return fmt.Sprintf("prefill computed, since %d tokens on %s were gone when they were to be read", r.Tokens, r.Server)
	case Computed:
		return fmt.Sprintf("prefill was to read %d tokens from %s, and computed some of them", r.Tokens, r.Server)
	case Failed:
		return fmt.Sprintf("prefill was to read %d tokens from %s, failed, and computed them", r.Tokens, r.Server)
	}
	return ""
}
