package chaos

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/svg"
)

// ReportSchema names the JSON form below; see loadtest.ReportSchema.
const ReportSchema = "tandem-chaos/1"

// Report is what came of some scenarios.
type Report struct {
	Schema    string `json:"schema"`
	Scenarios []Row  `json:"scenarios"`
}

// Row is one scenario. Times are in seconds.
type Row struct {
	Name      string         `json:"name"`
	Title     string         `json:"title"`
	Peer      string         `json:"peer,omitempty"`
	Events    []string       `json:"events"`
	RPS       float64        `json:"rps"`
	Requests  int            `json:"requests"`
	Failed    int            `json:"failed"`
	Errors    map[string]int `json:"errors,omitempty"`
	Samples   []string       `json:"error_samples,omitempty"`
	Continued int            `json:"migrated"`
	WorstTTFT float64        `json:"worst_ttft_seconds"`
	Recovery  float64        `json:"recovery_seconds"`
	Reached   map[string]int `json:"reached"` // clients' requests by engine that still answered
	Broken    []string       `json:"broken,omitempty"`
	Log       string         `json:"log,omitempty"` // directory, kept where a check broke
	Took      float64        `json:"took_seconds"`

	strip strip
}

// Strip is the picture of its requests and events over time.
func (r Row) Strip() template.HTML { return r.strip.draw() }

func row(o *Outcome, dir string) Row {
	r := Row{
		Name: o.Name, Title: o.Title, Peer: o.Peer, RPS: o.Load.RPS,
		Requests: o.Requests, Failed: o.Failed, Samples: o.Samples, Continued: o.Continued,
		WorstTTFT: o.WorstTTFT.Seconds(), Recovery: o.Recovery.Seconds(),
		Reached: o.Reached, Broken: o.Broken, Took: o.Took.Seconds(), strip: o.strip,
		Errors: make(map[string]int),
	}
	for kind, n := range o.Errors {
		r.Errors[string(kind)] = n
	}
	for _, e := range o.Events {
		r.Events = append(r.Events, fmt.Sprintf("%v %s", e.at, e.label))
	}
	if len(o.Broken) > 0 {
		r.Log = dir
	}
	return r
}

// Err names the scenarios that missed a check, nil if none did.
func (r *Report) Err() error {
	var broken []string
	for _, c := range r.Scenarios {
		if len(c.Broken) > 0 {
			broken = append(broken, c.Name)
		}
	}
	if len(broken) > 0 {
		return fmt.Errorf("%d of %d scenarios did not hold: %s", len(broken), len(r.Scenarios), strings.Join(broken, ", "))
	}
	return nil
}

// WriteTable writes the report for a reader.
func (r *Report) WriteTable(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "scenario\trequests\tfailed\tcontinued\tworst TTFT\trecovery\t")
	for _, c := range r.Scenarios {
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%s\t%s\t\n", c.Name, c.Requests, c.Failed, c.Continued, seconds(c.WorstTTFT), seconds(c.Recovery))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	var notes strings.Builder
	for _, c := range r.Scenarios {
		for _, broken := range c.Broken {
			fmt.Fprintf(&notes, "%s: %s (log: %s)\n", c.Name, broken, c.Log)
		}
	}
	_, err := io.WriteString(w, notes.String())
	return err
}

// seconds writes a time for a table.
func seconds(v float64) string {
	if v < 1 {
		return fmt.Sprintf("%.0f ms", 1000*v)
	}
	return fmt.Sprintf("%.1f s", v)
}

// WriteJSON writes the report, indented.
func (r *Report) WriteJSON(w io.Writer) error {
	r.Schema = ReportSchema
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}

//go:embed page.html
var pageText string

// WritePage writes the report as one HTML file without anything from elsewhere.
func (r *Report) WritePage(w io.Writer) error {
	page, err := template.New("page").Funcs(template.FuncMap{
		"seconds": seconds,
		"wide":    func() template.CSS { return svg.WideStyle },
	}).Parse(pageText)
	if err != nil {
		return fmt.Errorf("report page: %w", err)
	}
	return page.Execute(w, r)
}

// Show writes a line for each scenario as it is played.
func Show(w io.Writer, total int) func(n int, c Scenario, o *Outcome) {
	began := time.Now()
	return func(n int, c Scenario, o *Outcome) {
		if o == nil {
			fmt.Fprintf(w, "[%2d/%d %4.0f s] %s: %s\n", n+1, total, time.Since(began).Seconds(), c.Name, c.Title)
			return
		}
		verdict := "as it should"
		if len(o.Broken) > 0 {
			verdict = "NOT as it should: " + strings.Join(o.Broken, "; ")
		}
		fmt.Fprintf(w, "%16s%d requests, %d failed, %d continued, worst TTFT %s, recovery %s: %s\n", "",
			o.Requests, o.Failed, o.Continued, seconds(o.WorstTTFT.Seconds()), seconds(o.Recovery.Seconds()), verdict)
	}
}
