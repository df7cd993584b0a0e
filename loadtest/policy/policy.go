package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/tandem-gateway/tandem/pd/order"
)

// Kind says what a policy is to us.
type Kind string

// A policy is something any balancer can do, the published rule of a released
// product, a published idea without a release, ours, or out of reach.
const (
	Baseline  Kind = "baseline"
	Released  Kind = "released"
	Published Kind = "published"
	Ours      Kind = "ours"
	Reference Kind = "reference"
)

// Policy is a rule of choice.
type Policy struct {
	Name   string
	Kind   Kind
	Source string // where the rule is published
	// Optional says that the rule needs options of its product that are off unless
	// asked for.
	Optional bool
	Exact    bool // it has what no gateway can know
	// FirstFromPrefill is of the engines: prefill says the first token, as in a scenario that has it for all policies.
	FirstFromPrefill bool
	// Foresight is of the engines: their caches know the requests to come, and gateways nothing new.
	Foresight bool
	// OneDecider says that one replica decides for all: the others send it their
	// requests, and wait for its answer.
	OneDecider bool
	// New makes one instance for each gateway replica: a Chooser, or a queueingChooser.
	New func(s *Scenario, rng *rand.Rand) any
}

// on is a scenario as it is for a policy: the same where that needs nothing else.
func (p *Policy) on(s *Scenario) *Scenario {
	if p.Exact {
		s = s.withoutDelays()
	}
	if p.FirstFromPrefill && !s.FirstFromPrefill && !s.Overlap {
		said := *s
		said.FirstFromPrefill = true
		s = &said
	}
	return s
}

// Aggregated in pair of a prefill server: the decode server computes the prompt itself.
const Aggregated = order.Aggregated

// Pair is the servers of a request.
type Pair = order.Pair

// Chooser binds a request to its servers as it arrives.
type Chooser interface {
	Choose(v *View) Pair
}

// orderer is a Chooser that also gives prefill servers an order of service: lower
// keys go first. Without it they serve in order of arrival.
type orderer interface {
	Key(v *View, chosen Pair) float64
}

// transferLearner is a Chooser or a queueingChooser that learns from transfers: it is called
// when one begins, with prefill's answer, and when the first token has come, with
// the time from then, less the hand-off and the predicted step.
type transferLearner interface {
	Prefilled(v *View, j *job)
	Transferred(v *View, j *job, seconds float64)
}

// pullAwaiter is a transferLearner whose legs on decode wait for what decode pulls for others, or of pieces before: the
// transfer begins later than with prefill's answer.
type pullAwaiter interface {
	BeginTransfer(v *View, j *job)
}

// pullWatcher is a transferLearner that is told when decode begins to pull so many bytes of a piece, and when it has them.
type pullWatcher interface {
	BeginPull(v *View, j *job, bytes float64)
	EndPull(v *View, j *job)
}

// firstHolder is a Chooser or a queueingChooser that has prefill's token held where the second one is
// predicted to miss the objective for gaps behind it.
type firstHolder interface {
	// Hold returns for how many seconds from now on, when decode is asked.
	Hold(v *View, j *job) float64
	// Continued is called when decode has gone on behind such a token.
	Continued(v *View, j *job)
}

// endObserver is a Chooser or a queueingChooser that is told of each request's end.
type endObserver interface {
	Ended(j *job)
}

// prefixCopier is a Chooser that may have the beginning of a prompt copied to the chosen prefill
// server from another one.
type prefixCopier interface {
	// CopyFrom returns that other one, false without.
	CopyFrom(v *View, chosen Pair) (int, bool)
}

// queueingChooser keeps arrived requests until it binds them.
type queueingChooser interface {
	Add(v *View, j *job)
	// Next returns a request that is to go now, with its pair set.
	Next(v *View) (*job, bool)
	// Wake returns when Next is to be asked again though nothing has happened,
	// false if it need not be.
	Wake(v *View) (float64, bool)
}

// Policies returns all policies but tandem-shares, which is tandem-late but where a scenario has
// variants, those with other objectives for gaps, and what foresight would give, in the order of reports.
func Policies() []*Policy {
	return slices.Concat([]*Policy{
		randomPolicy, roundRobin, powerOfTwo, leastLoad,
		cacheAware, aibrix, aibrixConductor, aibrixHybrid, llmd, llmdDefault, llmdFlowControl, dynamo, dynamoTopology, dynamoQueue, dynamoAll,
	}, dynamoFull, []*Policy{
		conductor, conductorCopying,
		networkAware, lateExact,
		arrival, arrivalKey, latePairs, lateEach, throughput, lateBinding, pieces, byDefault,
	})
}

// strongestRivals had the least mean time to the first token in a scenario, with options or without,
// or goals are held against them.
var strongestRivals = []string{
	"least-load", "llm-d-default", "dynamo", "dynamo-topology-wspt", "dynamo-queue-0.5", "dynamo-queue-0.1",
	"dynamo-conditional-hot", "dynamo-conditional-hot-0.5", "dynamo-conditional-hot-0.1", "dynamo-conditional-kv", "dynamo-conditional-kv-0.1", "mooncake",
}

// Strongest returns those of Policies that are ours, and the strongest rivals.
func Strongest() []*Policy {
	return slices.DeleteFunc(Policies(), func(p *Policy) bool {
		return p.Kind != Ours && !slices.Contains(strongestRivals, p.Name)
	})
}

// known is all policies, with those that stand for one setting.
func known() []*Policy {
	return slices.Concat(Policies(), []*Policy{shares, unseenStore, unprotected, foresight}, gaps, dynamoShared)
}

// Names returns the names of all policies.
func Names() []string {
	var names []string
	for _, p := range known() {
		names = append(names, p.Name)
	}
	return names
}

// FindPolicies returns the policies named: Policies for "all", Strongest for "strongest".
func FindPolicies(names []string) ([]*Policy, error) {
	if slices.Contains(names, "all") {
		return Policies(), nil
	}
	if slices.Contains(names, "strongest") {
		return Strongest(), nil
	}
	all := known()
	var found []*Policy
	for _, name := range names {
		i := slices.IndexFunc(all, func(p *Policy) bool { return p.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("policy %q: want all, strongest or some of %s", name, strings.Join(Names(), ", "))
		}
		found = append(found, all[i])
	}
	return found, nil
}

// chooserFunc is a Chooser without state.
type chooserFunc func(v *View) Pair

func (f chooserFunc) Choose(v *View) Pair { return f(v) }

func stateless(f chooserFunc) func(*Scenario, *rand.Rand) any {
	return func(*Scenario, *rand.Rand) any { return f }
}
