package clients

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

// steps are the columns of the table, as the scripts name them.
var steps = []string{
	"create", "stream", "tools", "turns", "agent", "structured", "count",
	"unknown model", "bad request", "over limit", "broken stream",
}

// line is what a script prints: its client's version, how a step of an API went, how much of
// a later turn's prompt was cached, or that it waits for a line before it breaks streams.
type line struct {
	Version  string
	Answered bool // all steps are done whose answers are not broken
	API      string
	Step     string
	Error    *string
	Lacks    string // why the client has no such step
	Prompt   int    // tokens
	Cached   int    // of them
}

// results are those of one client.
type results struct {
	client, version string
	apis            []*apiResults
	pairs           int // answers, each prefilled and decoded on two servers
	took            time.Duration
}

type apiResults struct {
	name           string
	errors         map[string]string // by step; empty: it went well
	lacks          map[string]string // by step: why
	prompt, cached int               // tokens of later turns
}

func newResults(client string) *results { return &results{client: client} }

func (r *results) add(l line) {
	if l.Version != "" {
		r.version = l.Version
		return
	}
	a := r.of(l.API)
	switch {
	case l.Prompt > 0:
		a.prompt, a.cached = a.prompt+l.Prompt, a.cached+l.Cached
	case l.Lacks != "":
		a.lacks[l.Step] = l.Lacks
	case l.Error != nil:
		a.errors[l.Step] = *l.Error
	default:
		a.errors[l.Step] = ""
	}
}

func (r *results) of(api string) *apiResults {
	for _, a := range r.apis {
		if a.name == api {
			return a
		}
	}
	a := &apiResults{name: api, errors: map[string]string{}, lacks: map[string]string{}}
	r.apis = append(r.apis, a)
	return a
}

// check fails the test for each step that failed, and for later turns whose prompts were
// computed anew.
func (r *results) check(t *testing.T) {
	t.Helper()
	if r.version == "" || len(r.apis) == 0 {
		t.Fatal("the client did nothing")
	}
	for _, a := range r.apis {
		for step, err := range a.errors {
			if err != "" {
				t.Errorf("%s, %s: %s", a.name, step, err)
			}
			if !slices.Contains(steps, step) {
				t.Errorf("%s: no column for the step %s", a.name, step)
			}
		}
		if a.prompt == 0 || float64(a.cached) < leastCached*float64(a.prompt) {
			t.Errorf("%s: of %d prompt tokens of later turns %d were cached", a.name, a.prompt, a.cached)
		}
	}
}

func (a *apiResults) cell(step string) string {
	err, done := a.errors[step]
	switch {
	case !done:
		return "-"
	case err != "":
		return "FAILED"
	}
	return "ok"
}

// table is what `make e2e-clients` prints.
type table []*results

func (t table) String() string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "client\tversion\tAPI\t%s\tcached\n", strings.Join(steps, "\t"))
	var notes []string
	for _, r := range t {
		for _, a := range r.apis {
			fmt.Fprintf(w, "%s\t%s\t%s", r.client, r.version, a.name)
			for _, step := range steps {
				fmt.Fprintf(w, "\t%s", a.cell(step))
				if err := a.errors[step]; err != "" {
					notes = append(notes, fmt.Sprintf("%s, %s, %s FAILED: %s", r.client, a.name, step, err))
				}
				if why := a.lacks[step]; why != "" {
					notes = append(notes, fmt.Sprintf("%s, %s, %s: %s", r.client, a.name, step, why))
				}
			}
			fmt.Fprintf(w, "\t%.1f %%\n", 100*float64(a.cached)/float64(max(a.prompt, 1)))
		}
	}
	fmt.Fprintf(w, "\nclient\tanswers, each prefilled and decoded on two servers\ttime\n")
	for _, r := range t {
		fmt.Fprintf(w, "%s\t%d\t%.1f s\n", r.client, r.pairs, r.took.Seconds())
	}
	_ = w.Flush() // into memory
	out.WriteString("\n-: the client, or the API, has no such thing. cached: share of later turns' prompt tokens that caches held.\n")
	for _, note := range notes {
		fmt.Fprintln(&out, note)
	}
	return out.String()
}
