package policy

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/pd/cost"
)

func smallCluster(t *testing.T, seed uint64) *cluster {
	t.Helper()
	s, err := ParseScenario([]byte(smallScenario))
	if err != nil {
		t.Fatal(err)
	}
	c, err := newCluster(smallTrace(seed), s, randomPolicy, seed)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Branch and bound leaves nothing out: of the first four requests of a case all orders, on all
// prefill servers, to all decode servers, give the same least mean.
func TestOptimum_IsTheLeastOfAllSchedules(t *testing.T) {
	for seed := uint64(1); seed <= 4; seed++ {
		c := smallCluster(t, seed)
		c.jobs = c.jobs[:4]
		want := leastOfAll(newOptimum(c))
		if got := solve(c).mean; math.Abs(got-want) > 1e-9 {
			t.Errorf("seed %d: branch and bound has a mean of %.6f s, enumeration %.6f s", seed, got, want)
		}
	}
}

// leastOfAll tries every schedule: each order of the requests, each of them to each server.
func leastOfAll(o *optimum) float64 {
	n := len(o.requests)
	least := math.Inf(1)
	permutations(n, func(order []int) {
		for prefills := range power(o.scenario.Prefill, n) {
			at := digits(prefills, o.scenario.Prefill, n)
			ready := make([]float64, n)
			free := make([]float64, o.scenario.Prefill)
			for k, i := range order {
				hit := 0
				for _, before := range order[:k] {
					if at[before] == at[i] {
						hit = max(hit, o.common[i][before])
					}
				}
				ready[i] = max(free[at[i]], o.arrived[i]+o.scenario.trip()) + o.service(i, hit)
				free[at[i]] = ready[i]
			}
			for decodes := range power(o.scenario.Decode, n) {
				least = min(least, o.meanWith(at, digits(decodes, o.scenario.Decode, n), ready))
			}
		}
	})
	return least
}

// meanWith is the mean time to the first token of prompts that are computed by a time.
func (o *optimum) meanWith(at, decode []int, ready []float64) float64 {
	n := len(ready)
	inOrder := make([]int, n)
	for i := range inOrder {
		inOrder[i] = i
	}
	slices.SortFunc(inOrder, func(a, b int) int {
		if ready[a] < ready[b] {
			return -1
		}
		return 1
	})
	there := make([]float64, n)
	sum := 0.0
	for k, i := range inOrder {
		asks, held := ready[i]+o.scenario.handOff(), 0
		for _, before := range inOrder[:k] {
			if decode[before] == decode[i] && there[before] <= asks {
				held = max(held, o.common[i][before])
			}
		}
		tail := o.tail(i, held, o.link(at[i], decode[i]))
		there[i] = ready[i] + tail - o.scenario.Hardware.step(1, o.requests[i].Prompt)
		sum += ready[i] + tail - o.arrived[i]
	}
	return sum / float64(n)
}

func permutations(n int, visit func([]int)) {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	var swap func(k int)
	swap = func(k int) {
		if k == n {
			visit(order)
			return
		}
		for i := k; i < n; i++ {
			order[k], order[i] = order[i], order[k]
			swap(k + 1)
			order[k], order[i] = order[i], order[k]
		}
	}
	swap(0)
}

func power(base, n int) int { return int(math.Pow(float64(base), float64(n))) }

// digits are those of a number, by which n requests are given to as many servers as the base.
func digits(number, base, n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = number % base
		number /= base
	}
	return all
}

// In the simulator no policy is below its bound, and the schedule that was found is about there:
// what it has in addition is links that transfers share, and decode steps that are under way.
func TestGap_NoPolicyIsBelowItsBound(t *testing.T) {
	s, err := ParseScenario([]byte(smallScenario))
	if err != nil {
		t.Fatal(err)
	}
	inPieces := &Policy{Name: "pieces, on prefill servers", Kind: Ours, OneDecider: true, New: func(s *Scenario, _ *rand.Rand) any {
		b := newLateBinder(s, false) // the bounds are of what prefill servers compute
		b.pieces = cost.DefaultPieces
		return b
	}}
	policies := []*Policy{latePairs, conductor, dynamo, dynamoAll, leastLoad, roundRobin, inPieces}
	sum, least := 0.0, 0.0
	for seed := uint64(1); seed <= 60; seed++ {
		c, err := measureCase(s, policies, seed)
		if err != nil {
			t.Fatal(err)
		}
		sum, least = sum+c.means[0], least+c.whole
		if c.pieces > c.whole {
			t.Errorf("seed %d: in pieces nothing is below %.3f s, whole below %.3f s", seed, c.pieces, c.whole)
		}
		for k, mean := range c.means {
			bound, name := c.whole, "optimum"
			if k > 0 {
				name = policies[k-1].Name
			}
			if name == inPieces.Name {
				bound = c.pieces
			}
			if mean < bound*(1-1e-6) {
				t.Errorf("seed %d: %s has a mean of %.4f s, the bound is %.4f s", seed, name, mean, bound)
			}
		}
	}
	if sum > 1.03*least {
		t.Errorf("the optimum's schedules take %.3f of their bound in the simulator", sum/least)
	}
}

// A short prompt that comes while a long one is computed has its turn at once, in pieces; whole,
// on one server, it waits.
func TestPieceBound_WhatHasTheLeastLeftGoesFirst(t *testing.T) {
	s, err := ParseScenario([]byte(smallScenario + "noise: 0\n"))
	if err != nil {
		t.Fatal(err)
	}
	s.Prefill, s.PrefillRacks = 1, []int{1, 0}
	trace := &Trace{Exact: true}
	for i, prompt := range []int{60_000, 1_000} {
		trace.Requests = append(trace.Requests, Request{Stamp: float64(i), Prompt: prompt, Output: 9, Blocks: trace.newBlocks(nil, prompt)})
	}
	c, err := newCluster(trace, s, randomPolicy, 1)
	if err != nil {
		t.Fatal(err)
	}
	o := newOptimum(c)
	tails := 2*s.handOff() + s.Hardware.step(1, 60_000) + s.Hardware.step(1, 1_000)
	long, short := o.service(0, 0), o.service(1, 0)
	want := (s.trip() + long + short + s.trip() + short + tails) / 2
	if got := boundOfPieces(c); math.Abs(got-want) > 1e-9 {
		t.Errorf("the bound is %.6f s, want %.6f s", got, want)
	}
	if whole := solve(c).mean; whole < want+1 {
		t.Errorf("whole it takes %.3f s, in pieces %.3f s", whole, want)
	}
}

func TestGap_TableSaysWhatRan(t *testing.T) {
	g, err := MeasureGap(context.Background(), []*Policy{lateBinding}, 3, 101, 2)
	if err != nil {
		t.Fatal(err)
	}
	var table bytes.Buffer
	if err := g.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"3 cases", "seeds 101 to 103", "optimum", "tandem-late"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table does not say %q:\n%s", want, table.String())
		}
	}
	if _, err := MeasureGap(context.Background(), nil, 0, 1, 1); err == nil {
		t.Error("no cases, and no error")
	}
}
