package policy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"text/tabwriter"

	"golang.org/x/sync/errgroup"
)

// Gap says how far policies are from the optimum of small cases.
type Gap struct {
	Cases     int
	FirstSeed uint64
	// Whole and Pieces are mean times to the first token that no schedule is below which sends
	// prompts to prefill servers whole, or in pieces; in seconds.
	Whole, Pieces float64
	Rows          []GapRow
}

// GapRow is what came of a policy.
type GapRow struct {
	Policy string
	Mean   float64 // time to the first token, in seconds
	// Above is how far it is above the bound of whole prompts, as a share: mean of the cases.
	Above       float64
	Worst       float64 // the same of the worst case
	Near        int     // cases in which it is at most 5 % above
	AbovePieces float64 // as Above, of the bound for pieces
}

// smallScenario is the cluster of the small cases: B with four and four servers on two racks.
const smallScenario = "like: B\nname: small\nprefill: 4\ndecode: 4\nprefill_racks: [2, 2]\ndecode_racks: [2, 2]\n"

// smallTrace draws four to eight requests that come within three seconds: prompts of 1,000 to
// 60,000 tokens, half of which begin with one of two heads of 8,192 to 24,576 tokens.
func smallTrace(seed uint64) *Trace {
	rng := rand.New(rand.NewPCG(seed, 0))
	g := &generator{rng: rng, trace: &Trace{Name: "small", Exact: true}, seconds: 60}
	heads := [2]head{}
	for i := range heads {
		tokens := 8192 + rng.IntN(33)*blockTokens
		heads[i] = head{tokens: tokens, blocks: g.trace.newBlocks(nil, tokens)}
	}
	kind := &SessionKind{
		Turns: Draw{Least: 1, Most: 1}, FirstTokens: Draw{Shape: logUniform, Least: 1000, Most: 60000},
		AnswerTokens: Draw{Shape: exponential, Mean: 200, Least: 1, Most: 2000},
	}
	at := 0.0
	for range 4 + rng.IntN(5) {
		from := head{}
		if rng.IntN(2) == 0 {
			from = heads[rng.IntN(2)]
		}
		g.session(kind, from, at)
		at += 0.75 * rng.Float64()
	}
	return g.trace
}

// smallCase is what came of one case: bounds, and means of the optimum's schedule in the
// simulator and then of each policy.
type smallCase struct {
	whole, pieces float64
	means         []float64
}

// MeasureGap holds policies against the optimum of so many small cases, the first of a seed. Where a policy has the first
// token from prefill it is left out: the optimum's come from decode.
func MeasureGap(ctx context.Context, policies []*Policy, cases int, firstSeed uint64, parallel int) (*Gap, error) {
	if cases < 1 || parallel < 1 {
		return nil, errors.New("sim: want at least one case, and one at a time")
	}
	policies = slices.DeleteFunc(slices.Clone(policies), func(p *Policy) bool { return p.FirstFromPrefill })
	scenario, err := ParseScenario([]byte(smallScenario))
	if err != nil {
		return nil, err
	}
	all := make([]smallCase, cases)
	runs, ctx := errgroup.WithContext(ctx)
	runs.SetLimit(parallel)
	for i := range all {
		runs.Go(func() (err error) {
			if ctx.Err() == nil {
				all[i], err = measureCase(scenario, policies, firstSeed+uint64(i))
			}
			return errors.Join(err, ctx.Err())
		})
	}
	if err := runs.Wait(); err != nil {
		return nil, err
	}
	g := &Gap{Cases: cases, FirstSeed: firstSeed}
	for _, c := range all {
		g.Whole += c.whole / float64(cases)
		g.Pieces += c.pieces / float64(cases)
	}
	for k := range len(policies) + 1 {
		name := "optimum"
		if k > 0 {
			name = policies[k-1].Name
		}
		g.Rows = append(g.Rows, gapRow(name, all, k))
	}
	return g, nil
}

func gapRow(policy string, all []smallCase, k int) GapRow {
	row := GapRow{Policy: policy, Worst: math.Inf(-1)}
	n := float64(len(all))
	for _, c := range all {
		above := c.means[k]/c.whole - 1
		row.Mean += c.means[k] / n
		row.Above += above / n
		row.AbovePieces += (c.means[k]/c.pieces - 1) / n
		row.Worst = max(row.Worst, above)
		if above <= 0.05 {
			row.Near++
		}
	}
	return row
}

func measureCase(s *Scenario, policies []*Policy, seed uint64) (smallCase, error) {
	trace := smallTrace(seed)
	c, err := newCluster(trace, s, randomPolicy, seed)
	if err != nil {
		return smallCase{}, err
	}
	best := solve(c)
	found := smallCase{whole: best.mean, pieces: boundOfPieces(c)}
	for _, p := range append([]*Policy{best.replay()}, policies...) {
		o, err := Run(trace, s, p, seed)
		if err != nil {
			return smallCase{}, err
		}
		found.means = append(found.means, o.TTFT.Mean)
	}
	return found, nil
}

// WriteTable writes the gap for a terminal.
func (g *Gap) WriteTable(w io.Writer) error {
	fmt.Fprintf(w, "%d cases of 4 to 8 requests on 4 prefill and 4 decode servers, seeds %d to %d\nno schedule that computes prompts on prefill servers has a mean TTFT below %.3f s, whole, or %.3f s, in pieces\n",
		g.Cases, g.FirstSeed, g.FirstSeed+uint64(g.Cases)-1, g.Whole, g.Pieces)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(table, format, args...) } // Flush reports
	say("policy\tTTFT mean\tabove the bound, whole\tworst case\tcases within 5%%\tabove the bound, pieces\t\n")
	for _, r := range g.Rows {
		say("%s\t%.3f\t%.1f%%\t%.0f%%\t%.0f%%\t%.1f%%\t\n", r.Policy, r.Mean, 100*r.Above, 100*r.Worst, 100*float64(r.Near)/float64(g.Cases), 100*r.AbovePieces)
	}
	return table.Flush()
}
