package load

import (
	"fmt"
	"strings"
	"testing"
)

// vllmPage is as long as a page of vLLM: one histogram family after the other, with the few
// gauges that matter between them.
func vllmPage() string {
	var b strings.Builder
	for family := range 40 {
		name := fmt.Sprintf("vllm:request_phase_%d_seconds", family)
		fmt.Fprintf(&b, "# HELP %s Histogram of a phase of requests, in seconds.\n# TYPE %s histogram\n", name, name)
		for bucket := range 20 {
			fmt.Fprintf(&b, "%s_bucket{engine=\"0\",le=\"%d.0\",model_name=\"meta-llama/Llama-3.1-8B-Instruct\"} %d.0\n", name, bucket, 100*bucket)
		}
		fmt.Fprintf(&b, "%s_count{engine=\"0\",model_name=\"meta-llama/Llama-3.1-8B-Instruct\"} 2000.0\n", name)
		if family == 20 {
			b.WriteString(vllmExposition)
		}
	}
	return b.String()
}

// Budget: 0.1 ms of the 3.5 ms that the parser takes for the whole page (and 16 KB of 1 MB),
// since a gateway reads one of each server every probe interval.
func BenchmarkParseMetrics_APageOfVLLM(b *testing.B) {
	body, pages := []byte(vllmPage()), NewPages(DefaultTables())
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	var lines []byte
	for b.Loop() {
		lines = pages.elsewhere.appendRelevant(lines[:0], body)
		if l, err := pages.elsewhere.parse(lines, nil); err != nil || !l.Running.Known {
			b.Fatal(l, err)
		}
	}
}

// Lines of families that nothing is read from do not reach the parser; all of a family that
// is read does, by either name, and so does what may be no line of a family at all.
func TestFamilySet_KeepsWhatIsReadAndWhatIsSuspect(t *testing.T) {
	const kept = "# HELP vllm:busy Requests.\n# TYPE vllm:busy gauge\nvllm:busy{a=\"x y\"} 1\nvllm:busy 2 1700000000\nvllm_busy 3\n"
	for _, c := range []struct{ name, text, want string }{
		{"between others", "# HELP other Of another.\n# TYPE other histogram\nother_bucket{le=\"1\"} 3\n" + kept + "\nother_sum 4.5\n", kept},
		{"a sample without a value behind one with", "other{a=\"b\"} 1\nother{\nother{a=\"b\"} 1\n", "other{\n"},
		{"a sample that is cut off behind others", "vllm:busy 1\nother 1\nother 2", "vllm:busy 1\nother 2"},
		{"a name that only begins the same", "vllm:busy_total 3\nvllm:bus 1\nxvllm:busy 1\n", ""},
		{"HTML", "<html>no metrics</html>\n", "<html>no metrics</html>\n"},
		{"a name in quotes", "{\"vllm:busy\",a=\"b\"} 1\n", "{\"vllm:busy\",a=\"b\"} 1\n"},
		{"cut off", "other{le=\"1\",path=\"a b", "other{le=\"1\",path=\"a b"},
		{"without a value", "other\nother{\n", "other\nother{\n"},
		{"odd spaces", "#TYPE other gauge\n other 1\n", "#TYPE other gauge\n other 1\n"},
	} {
		if got := string(newFamilySet([]string{"vllm:busy"}).appendLines(nil, []byte(c.text))); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// The load of a page is that of the lines that it is read from, wherever they are.
func TestParseMetrics_HistogramsAroundChangeNothing(t *testing.T) {
	alone, err := parseMetrics([]byte(vllmExposition), DefaultTables(), nil)
	if err != nil || !alone.Known() {
		t.Fatal(alone, err)
	}
	among, err := parseMetrics([]byte(vllmPage()), DefaultTables(), nil)
	if err != nil || fmt.Sprint(among) != fmt.Sprint(alone) {
		t.Errorf("%+v, %v; want %+v", among, err, alone)
	}
}
