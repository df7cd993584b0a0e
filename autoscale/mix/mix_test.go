package mix

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pools/curve"
)

var (
	instances = flag.Int("instances", 100, "random problems to hold against glpsol")
	// A solution takes some milliseconds; a machine that does ten things more.
	within = flag.Duration("within", time.Minute, "time for each")
)

// randomProblem has lengths and speeds as they are met: log-normal prompts, hardware
// that differs by up to four in speed and less than that in cost, and now and then too
// little of it.
func randomProblem(rng *rand.Rand, classes, variants int) *Problem {
	p := &Problem{Use: 0.6 + 0.35*rng.Float64()}
	if rng.IntN(2) == 0 {
		p.Switch = rng.Float64()
	}
	for k := range classes {
		prompt := math.Exp2(7 + 8*rng.Float64())
		p.Classes = append(p.Classes, Class{
			Name: fmt.Sprint(k), Rate: math.Exp2(-3 + 5*rng.Float64()), Prompt: prompt, Uncached: prompt * (0.1 + 0.9*rng.Float64()),
			Output: math.Exp2(4 + 7*rng.Float64()), TTFT: time.Duration(1+rng.IntN(10)) * time.Second,
			ITL: time.Duration(20+10*rng.IntN(5)) * time.Millisecond, Weight: float64(1 + rng.IntN(3)),
		})
	}
	for g := range variants {
		speed := math.Exp2(2 * rng.Float64())
		v := Variant{
			Name: fmt.Sprint(g), Cost: speed * (0.6 + 0.8*rng.Float64()), GPUs: 1 + rng.IntN(4),
			Capacity: sizing.Capacity{
				Schema: 1, Prefill: curve.Curve{0.005, 0.08 / speed, 0.0004 / speed},
				Step: curve.Curve{0.012 / speed, 8e-5 / speed, 0.03 / speed}, KVTokens: int(2e5 * speed * (0.5 + rng.Float64())), MaxSequences: 64 << rng.IntN(3),
			},
			Prefill: rng.IntN(4), Decode: rng.IntN(4),
		}
		if rng.IntN(3) == 0 {
			v.Have = v.GPUs * (1 + rng.IntN(12))
		}
		p.Variants = append(p.Variants, v)
	}
	return p
}

// Every random problem is solved as GLPK's branch and bound solves it: at most 2 %
// dearer in 99 of 100, never infeasible. All thousand, and none late:
// go test ./autoscale/mix -run Glpsol -instances 1000 -within 200ms -v
func TestSolve_AsGoodAsGlpsol(t *testing.T) {
	glpsol, err := exec.LookPath("glpsol")
	if err != nil {
		t.Skip("glpsol is not installed (Debian package glpk-utils)")
	}
	rng := rand.New(rand.NewPCG(1, 2))
	dearer, compared := 0, 0
	var times []time.Duration
	for i := range *instances {
		classes, variants := 1+rng.IntN(16), 1+rng.IntN(3)
		if i%4 == 0 {
			classes, variants = 16, 3
		}
		p := randomProblem(rng, classes, variants)
		begin := time.Now()
		m, err := p.Solve(*within)
		times = append(times, time.Since(begin))
		best, feasible, proven := askGlpsol(t, glpsol, p.programme(p.layout()))
		if err != nil || !feasible {
			t.Fatalf("problem %d: %v, glpsol says feasible %v", i, err, feasible)
		}
		checkMix(t, p, m)
		if m.Objective < best*(1-1e-6)-1e-6 && proven {
			t.Errorf("problem %d: %.6f is below the optimum %.6f", i, m.Objective, best)
		}
		if proven {
			compared++
			if m.Objective > 1.02*best+1e-9 {
				dearer++
				t.Logf("problem %d (%d x %d): %.4f, optimum %.4f", i, classes, variants, m.Objective, best)
			}
		}
	}
	slices.Sort(times)
	t.Logf("%d of %d compared, %d more than 2 %% dearer; p50 %v, p99 %v, slowest %v", compared, *instances, dearer,
		times[len(times)/2], times[len(times)*99/100], times[len(times)-1])
	if dearer > *instances/100 {
		t.Errorf("%d of %d are more than 2 %% dearer than the optimum", dearer, compared)
	}
	if compared < *instances*9/10 {
		t.Errorf("glpsol proved only %d of %d", compared, *instances)
	}
}

// oneKind is a problem with one kind of hardware and two classes of chats.
func oneKind() *Problem {
	chat := Class{Name: "chat", Rate: 4, Prompt: 4000, Uncached: 2000, Output: 400, TTFT: 2 * time.Second, ITL: 40 * time.Millisecond, Weight: 1}
	paid := chat
	paid.Name, paid.Weight = "paid", 5
	return &Problem{
		Use: 0.8, Classes: []Class{chat, paid},
		Variants: []Variant{{Name: "h100", Cost: 3, GPUs: 1, Capacity: sizing.Capacity{
			Schema: 1, Prefill: curve.Curve{0.01, 0.06, 0}, Step: curve.Curve{0.01, 5e-5, 0.03}, KVTokens: 350_000,
		}}},
	}
}

// Prefill: 8 x 0.13 s of work a second, at four fifths 1.3 servers. Decode: 8 x 400 x
// 24.7 ms, which is a server's step when its KV is full (83 requests of 4,200 tokens,
// each 0.05 + 0.126 ms), = 79 requests at once: 0.95 servers' KV, at four fifths 1.19.
func TestSolve_OneKindByHand(t *testing.T) {
	m, err := oneKind().Solve(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if m.Prefill[0] != 2 || m.Decode[0] != 2 || m.Cost != 12 || !m.Proven {
		t.Errorf("%+v", m)
	}
	if len(m.Prices) < 2 || m.Prices[0].What != "prefill" || m.Prices[1].What != "kv" && m.Prices[1].What != "decode" {
		t.Errorf("prefill and decode are what is bought, not %+v", m.Prices)
	}
}

// Where a step takes as long whatever is in the batch, KV alone bounds it.
func TestSolve_AStepThatIsAlwaysAsLong(t *testing.T) {
	p := oneKind()
	p.Variants[0].Capacity.Step = curve.Curve{0.02, 0, 0}
	m, err := p.Solve(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	// 8 x 400 x 20 ms = 64 requests of 4,200 tokens: 0.77 servers' KV, at four fifths 0.96.
	if m.Prefill[0] != 2 || m.Decode[0] != 1 || m.Unmet[0]+m.Unmet[1] > 1e-6 || !m.Proven {
		t.Errorf("%+v", m)
	}
	p.Variants[0].Decode = 1
	if _, busy := p.balance(decoding); !(math.Abs(busy-0.96) < 0.01) {
		t.Errorf("busy %g, want 0.96", busy)
	}
}

// A request in a quarter of an hour is so little work that it is lost in rounding; no server
// at all does not do it.
func TestSolve_LittleTrafficHasServersOfBothRoles(t *testing.T) {
	p := oneKind()
	p.Variants[0].Capacity.Step = curve.Curve{0.006, 0, 0.03}
	p.Classes = p.Classes[:1]
	for _, rate := range []float64{1e-3, 1e-6, 1e-9} {
		p.Classes[0].Rate, p.Classes[0].Prompt, p.Classes[0].Uncached, p.Classes[0].Output = rate, 100, 100, 10
		m, err := p.Solve(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if m.Prefill[0] != 1 || m.Decode[0] != 1 || m.Unmet[0] > 1e-6 {
			t.Errorf("%g requests a second: %+v", rate, m)
		}
	}
}

func TestSolve_ShedsTheLighterClass(t *testing.T) {
	p := oneKind()
	p.Variants[0].Have = 2
	m, err := p.Solve(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if m.Unmet[0] < 0.1 || m.Unmet[1] > 1e-9 || m.Prefill[0]+m.Decode[0] != 2 {
		t.Errorf("unmet %.3f, want some of chat and none of paid", m.Unmet)
	}
	checkMix(t, p, m)
	if i := slices.IndexFunc(m.Prices, func(x Price) bool { return x.What == "gpus" }); i < 0 {
		t.Errorf("GPUs are short, and have no price: %+v", m.Prices)
	}
}

func TestSolve_ServersThatRunAreKept(t *testing.T) {
	p := oneKind()
	old := p.Variants[0]
	old.Name, old.Cost, old.Prefill, old.Decode = "old", 3.2, 2, 2
	p.Variants = append(p.Variants, old)
	p.Switch = 1
	m, err := p.Solve(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if m.Prefill[1] != 2 || m.Decode[1] != 2 || math.Abs(m.Cost-4*3.2) > 1e-9 {
		t.Errorf("starting others costs more than it saves in the hour: %+v", m)
	}
}

// With no time at all the first solution counts; it serves what the last would.
func TestSolve_WithoutTimeIsStillFeasible(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		p := randomProblem(rng, 16, 3)
		begin := time.Now()
		m, err := p.Solve(0)
		if err != nil {
			t.Fatal(err)
		}
		checkMix(t, p, m)
		if m.Proven {
			t.Error("nothing was searched, and it is called the best")
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("took %v", took)
		}
	}
}

// checkMix computes from the problem, not the programme, that the mix serves.
func checkMix(t *testing.T, p *Problem, m *Mix) {
	t.Helper()
	for k := range p.Classes {
		prefill, decode := m.Unmet[k], m.Unmet[k]
		for g := range p.Variants {
			if m.PrefillShare[k][g] > 1e-9 && p.prefills(k, g) {
				prefill += m.PrefillShare[k][g]
			}
			if m.DecodeShare[k][g] > 1e-9 && p.decodes(k, g) {
				decode += m.DecodeShare[k][g]
			}
		}
		if prefill < 1-1e-6 || decode < 1-1e-6 {
			t.Errorf("class %d: %.4f prefilled, %.4f decoded", k, prefill, decode)
		}
	}
	for g := range p.Variants {
		v := &p.Variants[g]
		busy, time, kv, sequences := 0.0, 0.0, 0.0, 0.0
		for k := range p.Classes {
			c := &p.Classes[k]
			busy += c.Rate * v.Capacity.PrefillSeconds(c.Uncached, c.Prompt-c.Uncached) * m.PrefillShare[k][g]
			if p.decodes(k, g) {
				time += p.decodeLoad(k, g) * m.DecodeShare[k][g]
			}
			kv += p.kvLoad(k, g) * m.DecodeShare[k][g]
			sequences += p.decoding(k, g) * m.DecodeShare[k][g]
		}
		d := p.Use*float64(m.Decode[g]) + 1e-6
		if busy > p.Use*float64(m.Prefill[g])+1e-6 || time > d || kv > d {
			t.Errorf("variant %d is overloaded: prefill %.3f of %d, decode %.3f of %d", g, busy, m.Prefill[g], time, m.Decode[g])
		}
		if most := float64(v.Capacity.MaxSequences); most > 0 && sequences > most*d {
			t.Errorf("variant %d decodes %.1f sequences on %d servers of %.0f", g, sequences, m.Decode[g], most)
		}
		if v.Have > 0 && (m.Prefill[g]+m.Decode[g])*v.GPUs > v.Have {
			t.Errorf("variant %d: %d servers of %d GPUs, %d there are", g, m.Prefill[g]+m.Decode[g], v.GPUs, v.Have)
		}
	}
}

// askGlpsol solves a programme with GLPK.
func askGlpsol(t *testing.T, glpsol string, q *programme) (objective float64, feasible, proven bool) {
	t.Helper()
	dir := t.TempDir()
	problem, result := filepath.Join(dir, "p.lp"), filepath.Join(dir, "r")
	if err := os.WriteFile(problem, writeLP(q), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), glpsol, "--lp", problem, "--cuts", "--tmlim", "20", "-o", result).CombinedOutput()
	if err != nil {
		t.Fatalf("glpsol: %v\n%s", err, out)
	}
	text, err := os.ReadFile(result)
	if err != nil {
		t.Fatal(err)
	}
	status := regexp.MustCompile(`Status: +([A-Z ()-]+)`).FindStringSubmatch(string(text))
	value := regexp.MustCompile(`Objective: +\S+ = (\S+)`).FindStringSubmatch(string(text))
	if status == nil || value == nil {
		t.Fatalf("glpsol wrote no result:\n%s\n%s", out, text)
	}
	objective, err = strconv.ParseFloat(value[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	s := strings.TrimSpace(status[1])
	return objective, s != "INTEGER EMPTY" && s != "INTEGER UNDEFINED", s == "INTEGER OPTIMAL"
}

// writeLP writes a programme in the format of CPLEX.
func writeLP(q *programme) []byte {
	var b bytes.Buffer
	sum := func(coefficients []float64) {
		for j, c := range coefficients {
			if c != 0 {
				fmt.Fprintf(&b, " %+.17g v%d\n", c, j)
			}
		}
	}
	fmt.Fprintln(&b, "Minimize\n cost:")
	sum(q.cost)
	fmt.Fprintln(&b, "Subject To")
	for i, row := range q.rows {
		if slices.ContainsFunc(row, func(c float64) bool { return c != 0 }) {
			fmt.Fprintf(&b, "r%d:\n", i)
			sum(row)
			fmt.Fprintf(&b, " <= %.17g\n", q.limit[i])
		}
	}
	fmt.Fprintln(&b, "Bounds")
	for k := range q.integers {
		fmt.Fprintf(&b, " v%d <= %d\n", k, q.most[k])
	}
	fmt.Fprintln(&b, "General")
	for k := range q.integers {
		fmt.Fprintf(&b, " v%d\n", k)
	}
	fmt.Fprintln(&b, "End")
	return b.Bytes()
}
