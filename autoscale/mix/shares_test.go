package mix

import (
	"math"
	"math/rand/v2"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/demand"
	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/share"
)

// unlike are two servers each of hardware that is quick with tokens, and of hardware that
// is quick with long contexts.
func unlike() []Variant {
	tokens, squares := kind("tokens", 1, 1), kind("squares", 1, 1)
	tokens.Prefill, squares.Prefill = 2, 2
	tokens.Capacity.Prefill = curve.Curve{0, 0.05, 0.004}
	squares.Capacity.Prefill = curve.Curve{0, 0.15, 0.001}
	return []Variant{tokens, squares}
}

// asks is traffic of so many requests of each prompt length, nothing of it cached.
func asks(requests map[int]float64) (t demand.Traffic) {
	for tokens, n := range requests {
		all := n * float64(tokens)
		t[share.ClassOf(tokens, 100)] = demand.Lengths{Requests: n, Prompt: all, Computed: all, Output: 100 * n}
	}
	return t
}

// A prompt of 2,000 tokens takes 0.116 s here and 0.304 there, one of 40,000 takes 8.4 and
// 7.6. With 800 to 10 there are 93 s of short ones and 76 s of long ones: each goes to the
// hardware that is quicker with it, save for a tenth of the short ones.
func TestShares_EachToTheHardwareThatIsQuickerWithIt(t *testing.T) {
	traffic := asks(map[int]float64{2000: 800, 40_000: 10})
	table := Shares(unlike(), &traffic, 0)
	if table == nil || table.Column("tokens") != 0 || table.Column("squares") != 1 {
		t.Fatalf("%+v", table)
	}
	short, long := table.Prefill[share.ClassOf(2000, 100)], table.Prefill[share.ClassOf(40_000, 100)]
	// 92.8 s x part = 76 s + 243.2 s x (1 - part)
	if math.Abs(short[0]-319.2/336) > 1e-3 || math.Abs(short[0]+short[1]-1) > 1e-6 || long[0] > 1e-6 || long[1] < 1-1e-6 {
		t.Errorf("short ones %v, long ones %v", short, long)
	}
	if want := 0.8 * 319.2 / 336; math.Abs(table.Tokens[0]-want) > 1e-3 || math.Abs(sumUp(table.Tokens)-1) > 1e-6 {
		t.Errorf("of all tokens %v, want %.3f for the first kind", table.Tokens, want)
	}
}

func TestShares_NothingToShare(t *testing.T) {
	traffic, none := asks(map[int]float64{2000: 10}), demand.Traffic{}
	stopped := unlike()
	stopped[0].Prefill, stopped[1].Prefill = 0, 0
	for name, table := range map[string]*share.Table{
		"one kind":    Shares(unlike()[:1], &traffic, 0),
		"no requests": Shares(unlike(), &none, 0),
		"no servers":  Shares(stopped, &traffic, 0),
	} {
		if table != nil {
			t.Errorf("%s: %+v", name, table)
		}
	}
}

// Hardware on which a prompt misses its objective even alone does not get it, as long as
// there is other.
func TestShares_KeepTheObjective(t *testing.T) {
	traffic := asks(map[int]float64{2000: 1, 40_000: 100})
	long := share.ClassOf(40_000, 100)
	if free := Shares(unlike(), &traffic, 0); free.Prefill[long][0] < 0.1 {
		t.Fatalf("without an objective both kinds are busy: %v", free.Prefill[long])
	}
	if kept := Shares(unlike(), &traffic, 8*time.Second); kept.Prefill[long][0] > 1e-6 {
		t.Errorf("8.4 s is too late, and it gets %v", kept.Prefill[long])
	}
	if none := Shares(unlike(), &traffic, time.Second); none.Prefill[long] == nil {
		t.Error("no hardware is quick enough, and it has no share of any")
	}
}

// What is asked for in classes is served by the hardware that is best for each: mean
// requests would be no worse on one kind than on the other.
func TestInventory_BuysForTheClasses(t *testing.T) {
	variants := unlike()
	for i := range variants {
		variants[i].Prefill = 0
	}
	a := asked(0, 1)
	a.Traffic = asks(map[int]float64{2000: 800, 40_000: 10})
	a.PrefillRate = 200_000 // 80 short ones a second, the work of 9.3 servers of the one kind, and a long one, of 7.6 of the other
	s := Inventory{Variants: variants}
	got, err := s.Allocate(a)
	if err != nil {
		t.Fatal(err)
	}
	if got.Prefill["tokens"] < 8 || got.Prefill["squares"] < 7 || sumOf(got.Prefill) > 18 {
		t.Errorf("%+v: want each kind for what it is quicker with", got)
	}
	// It stands, though speeds waver by a hundredth.
	a.Current, a.PrefillRate = &got, a.PrefillRate*1.01
	if again, err := s.Allocate(a); err != nil || again.Prefill["tokens"] != got.Prefill["tokens"] || again.Prefill["squares"] != got.Prefill["squares"] {
		t.Errorf("%+v, %v after %+v", again, err, got)
	}
}

// The balance of random problems is as good as GLPK's, and each class is served once.
func TestBalance_AsGoodAsGlpsol(t *testing.T) {
	glpsol, err := exec.LookPath("glpsol")
	if err != nil {
		t.Skip("glpsol is not installed (Debian package glpk-utils)")
	}
	rng := rand.New(rand.NewPCG(5, 6))
	for i := range *instances {
		p := randomProblem(rng, 1+rng.IntN(16), 1+rng.IntN(3))
		for _, role := range []phase{prefilling, decoding} {
			shares, busy := p.balance(role)
			q, served := p.balanced(role)
			if !slices.Contains(served, true) {
				continue // there is nothing to solve
			}
			objective, feasible, _ := askGlpsol(t, glpsol, q)
			if !feasible {
				t.Fatalf("problem %d, %v: glpsol finds no solution", i, role)
			}
			all := true
			for k, parts := range shares {
				all = all && served[k]
				if sum := sumUp(parts); served[k] && math.Abs(sum-1) > 1e-6 || !served[k] && parts != nil {
					t.Errorf("problem %d, %v: class %d (served: %v) has %v", i, role, k, served[k], parts)
				}
			}
			if all && (busy > objective*(1+1e-6)+1e-9 || math.IsInf(busy, 1)) || !all && !math.IsInf(busy, 1) {
				t.Errorf("problem %d, %v: busy %v, the best is %v; all classes served: %v", i, role, busy, objective, all)
			}
		}
	}
}

func sumOf(units map[string]int) (sum int) {
	for _, n := range units {
		sum += n
	}
	return sum
}

func sumUp(parts []float64) (sum float64) {
	for _, p := range parts {
		sum += p
	}
	return sum
}
