package mutate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Config is what is asked of one package.
type Config struct {
	Dir        string            // of the package, absolute
	Work       string            // where binaries and results are kept
	Mutants    int               // how many are drawn; 0 is all
	Seed       uint64            // of the draw
	Jobs       int               // runs of the tests at once
	Equivalent map[string]string // by Package and Name of a mutant: why no test can detect it
	Package    string            // as it is written in reports and in Equivalent: pd/order
	Out        io.Writer         // progress
}

// Verdict is what became of one mutant.
type Verdict struct {
	Mutant     Mutant  `json:"mutant"`
	Name       string  `json:"name"`
	Killed     bool    `json:"killed"`
	Reached    bool    `json:"reached"` // by a test
	By         string  `json:"by"`      // the test that failed first, or what ended it
	Equivalent string  `json:"equivalent,omitempty"`
	Seconds    float64 `json:"seconds"`
}

// Result is that of a package.
type Result struct {
	Package  string    `json:"package"`
	Seed     uint64    `json:"seed"`
	Places   int       `json:"places"` // where an operator applies
	Baseline float64   `json:"baseline_seconds"`
	Verdicts []Verdict `json:"verdicts"`
}

// Killed is how many mutants a test noticed.
func (r Result) Killed() (n int) {
	for _, v := range r.Verdicts {
		if v.Killed {
			n++
		}
	}
	return n
}

// Equivalent is how many that no test noticed are listed as equivalent.
func (r Result) Equivalent() (n int) {
	for _, v := range r.Verdicts {
		if !v.Killed && v.Equivalent != "" {
			n++
		}
	}
	return n
}

// MaxEquivalent is the part of the drawn mutants that may be listed as equivalent.
const MaxEquivalent = 0.05

// Score is killed / (drawn less equivalent), 0..1; beyond MaxEquivalent those listed count as
// survivors.
func (r Result) Score() float64 {
	drawn := len(r.Verdicts)
	equivalent := min(r.Equivalent(), int(MaxEquivalent*float64(drawn)))
	if drawn == equivalent {
		return 1
	}
	return float64(r.Killed()) / float64(drawn-equivalent)
}

// Survivors are those that no test noticed and that are not listed as equivalent.
func (r Result) Survivors() (left []Verdict) {
	for _, v := range r.Verdicts {
		if !v.Killed && v.Equivalent == "" {
			left = append(left, v)
		}
	}
	return left
}

// Run draws mutants of a package and runs its tests with each. Verdicts that are kept in
// cfg.Work of an earlier run on the same sources are taken over.
func Run(ctx context.Context, cfg Config) (Result, error) {
	name, places, err := find(cfg.Dir)
	if err != nil {
		return Result{}, err
	}
	r := Result{Package: cfg.Package, Seed: cfg.Seed, Places: len(places)}
	drawn := draw(places, cfg.Mutants, cfg.Seed)
	kept, err := openJournal(cfg)
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = kept.file.Close() }()
	for _, race := range []bool{false, true} {
		part := slices.DeleteFunc(slices.Clone(drawn), func(p place) bool { return (p.Operator == DropLock) != race })
		if len(part) == 0 {
			continue
		}
		if err := runPart(ctx, cfg, &r, kept, name, race, part); err != nil {
			return r, err
		}
	}
	slices.SortFunc(r.Verdicts, func(a, b Verdict) int { return strings.Compare(a.Name, b.Name) })
	return r, nil
}

// draw takes n places by chance, in their order; all if n is 0 or too many.
func draw(places []place, n int, seed uint64) []place {
	if n == 0 || n >= len(places) {
		return places
	}
	chosen := rand.New(rand.NewPCG(seed, 0)).Perm(len(places))[:n]
	slices.Sort(chosen)
	drawn := make([]place, n)
	for i, k := range chosen {
		drawn[i] = places[k]
	}
	return drawn
}

// runPart runs those that want the race detector, or those that do not.
func runPart(ctx context.Context, cfg Config, r *Result, kept *journal, name string, race bool, part []place) error {
	var open []place
	for _, p := range part {
		if v, ok := kept.seen[p.Name()]; ok {
			v.Equivalent = cfg.Equivalent[cfg.Package+" "+v.Name]
			r.Verdicts = append(r.Verdicts, v)
		} else {
			open = append(open, p)
		}
	}
	if len(open) == 0 {
		return nil
	}
	work := filepath.Join(cfg.Work, strings.ReplaceAll(cfg.Package, "/", "-")+map[bool]string{true: "-race"}[race])
	b, err := build(ctx, cfg.Dir, name, work, race, open)
	if err != nil {
		return err
	}
	args, err := flags(cfg.Dir)
	if err != nil {
		return err
	}
	reached, took, err := baseline(ctx, cfg.Dir, b, work, args)
	if err != nil {
		return fmt.Errorf("%s: without a fault: %w", cfg.Package, err)
	}
	r.Baseline = max(r.Baseline, took.Seconds())
	_, _ = fmt.Fprintf(cfg.Out, "%s: %d faults of %d places, %d of them reached by a test; the tests take %.1f s\n",
		cfg.Package, len(open), r.Places, len(reached), took.Seconds())

	var mu sync.Mutex // guards r, kept, done and first
	var first error
	done := 0
	next := make(chan int)
	var workers sync.WaitGroup
	for range max(1, cfg.Jobs) {
		workers.Go(func() {
			for i := range next {
				v := Verdict{Mutant: open[i].Mutant, Name: open[i].Name(), Reached: reached[i+1]}
				var err error
				if v.Reached {
					v, err = judge(ctx, cfg.Dir, b, i+1, took, args, v)
				}
				mu.Lock()
				if err == nil {
					err = kept.write(v)
				}
				if err != nil && first == nil {
					first = err
				}
				v.Equivalent = cfg.Equivalent[cfg.Package+" "+v.Name]
				r.Verdicts = append(r.Verdicts, v)
				done++
				_, _ = fmt.Fprintf(cfg.Out, "[%3d/%3d] %-8s %s:%d %s%s\n", done, len(open), v.word(), v.Mutant.File, v.Mutant.Line, v.describe(), v.by())
				mu.Unlock()
			}
		})
	}
	for i := range open {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	workers.Wait()
	return errors.Join(first, ctx.Err())
}

func (v Verdict) word() string {
	switch {
	case v.Killed:
		return "killed"
	case v.Equivalent != "":
		return "equal"
	case !v.Reached:
		return "UNTOUCHED"
	}
	return "SURVIVED"
}

func (v Verdict) describe() string {
	return v.Mutant.Func + ": " + string(v.Mutant.Operator) + ": " + v.Mutant.Source
}

func (v Verdict) by() string {
	if v.By == "" {
		return ""
	}
	return " (" + v.By + ")"
}

// baseline runs the tests without a fault: which switches they come by, and how long they take.
func baseline(ctx context.Context, dir string, b string, work string, args []string) (reached map[int]bool, took time.Duration, err error) {
	log := filepath.Join(work, "reached")
	if err := os.Remove(log); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, 0, err
	}
	start := time.Now()
	cmd := exec.CommandContext(ctx, b, append(slices.Clone(args), "-test.timeout=10m")...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "MUTANT_REACHED="+log)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, 0, fmt.Errorf("%w\n%s", err, tail(out))
	}
	took = time.Since(start)
	text, err := os.ReadFile(log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, 0, err
	}
	reached = map[int]bool{}
	for line := range strings.Lines(string(text)) {
		id, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", log, err)
		}
		reached[id] = true
	}
	return reached, took, nil
}

// flags are those of every run of a package's tests. Property tests must not keep what fails
// only with a fault: they would try it again without.
func flags(dir string) ([]string, error) {
	tests, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	for _, test := range tests {
		source, err := os.ReadFile(test)
		if err != nil {
			return nil, err
		}
		if bytes.Contains(source, []byte(`"pgregory.net/rapid"`)) {
			return []string{"-test.count=1", "-rapid.nofailfile"}, nil
		}
	}
	return []string{"-test.count=1"}, nil
}

// failed is the name of a test in what go test prints.
var failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// judge runs the tests with one fault. A test that fails, a panic and a run that takes more
// than three times as long as without it all detect it.
func judge(ctx context.Context, dir string, b string, id int, usual time.Duration, args []string, v Verdict) (Verdict, error) {
	limit := 3*usual + 10*time.Second
	bounded, cancel := context.WithTimeout(ctx, limit+10*time.Second)
	defer cancel()
	start := time.Now()
	cmd := exec.CommandContext(bounded, b, append(slices.Clone(args), "-test.failfast", "-test.timeout="+limit.String())...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "MUTANT="+strconv.Itoa(id))
	out, err := cmd.CombinedOutput()
	v.Seconds = time.Since(start).Seconds()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return v, ctx.Err()
	case err == nil:
		return v, nil
	case !errors.As(err, &exit):
		return v, err
	}
	v.Killed, v.By = true, "it ended"
	if m := failed.FindSubmatch(out); m != nil {
		v.By = string(m[1])
	} else if bytes.Contains(out, []byte("panic: test timed out")) || bounded.Err() != nil {
		v.By = "it took too long"
	} else if bytes.Contains(out, []byte("panic:")) {
		v.By = "a panic"
	} else if bytes.Contains(out, []byte("DATA RACE")) {
		v.By = "the race detector"
	}
	return v, nil
}

func tail(b []byte) []byte { return b[max(0, len(b)-4000):] }
