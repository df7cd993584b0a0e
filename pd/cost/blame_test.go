package cost

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/tandem-gateway/tandem/pd/order"
)

// The cases of which server is blamed for slow transfers. Each names pairs and how many times
// longer than the others they take; every pair that is not named takes as long as
// assumed. In each round all of them move a gigabyte, with noise, or only the named ones.
// Printed is how many times longer than assumed each pair is believed to take; "new" is a
// server that was never met. Regenerate with: go test ./pd/cost -run TestLinks_Golden -rewrite
func TestLinks_Golden(t *testing.T) {
	datadriven.Walk(t, "testdata/blame", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var prefills, decodes, rounds int
			d.ScanArgs(t, "prefill", &prefills)
			d.ScanArgs(t, "decode", &decodes)
			d.ScanArgs(t, "rounds", &rounds)
			factors := map[pairID]float64{}
			for p := range prefills {
				for q := range decodes {
					if !d.HasArg("only") {
						factors[pairID{fmt.Sprint("p", p+1), fmt.Sprint("d", q+1)}] = 1
					}
				}
			}
			for line := range strings.SplitSeq(strings.TrimSpace(d.Input), "\n") {
				for id, factor := range pairsOf(t, line, prefills, decodes) {
					factors[id] = factor
				}
			}
			l, now := NewLinks(DefaultLinks()), linkTime
			if d.HasArg("known") { // all have been well before
				now = teach(l, evenly(prefills, decodes), 10, now)
			}
			now = teach(l, factors, rounds, now)
			return believed(l, prefills, decodes, now)
		})
	})
}

// evenly is all pairs, as fast as assumed.
func evenly(prefills, decodes int) map[pairID]float64 {
	all := map[pairID]float64{}
	for p := range prefills {
		for q := range decodes {
			all[pairID{fmt.Sprint("p", p+1), fmt.Sprint("d", q+1)}] = 1
		}
	}
	return all
}

// pairsOf reads "p1 d2 8": a pair and its factor; * is every server.
func pairsOf(t *testing.T, line string, prefills, decodes int) map[pairID]float64 {
	words := strings.Fields(line)
	if len(words) == 0 {
		return nil
	}
	if len(words) != 3 {
		t.Fatalf("want: prefill decode factor, got %q", line)
	}
	factor, err := strconv.ParseFloat(words[2], 64)
	if err != nil {
		t.Fatal(err)
	}
	all := evenly(prefills, decodes)
	maps.DeleteFunc(all, func(id pairID, _ float64) bool {
		return words[0] != "*" && id.prefill != words[0] || words[1] != "*" && id.decode != words[1]
	})
	for id := range all {
		all[id] = factor
	}
	return all
}

// teach lets pairs move a gigabyte each, round after round, a second apart.
func teach(l *Links, factors map[pairID]float64, rounds int, now time.Time) time.Time {
	r := rand.New(rand.NewPCG(1, 1))
	ids := slices.SortedFunc(maps.Keys(factors), func(a, b pairID) int {
		return strings.Compare(a.prefill+" "+a.decode, b.prefill+" "+b.decode)
	})
	for range rounds {
		r.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		for _, id := range ids {
			noise := 1 + 0.2*r.Float64()
			took := time.Duration(factors[id] * noise * float64(20200*time.Microsecond))
			l.Observe(at(id.prefill, "r1").LinkEnd(), at(id.decode, "r1").LinkEnd(), 1e9, took, 0, now)
		}
		now = now.Add(time.Second)
	}
	return now
}

func believed(l *Links, prefills, decodes int, now time.Time) string {
	var ps, ds []Candidate
	for p := range prefills {
		ps = append(ps, *at(fmt.Sprint("p", p+1), "r1"))
	}
	for d := range decodes {
		ds = append(ds, *at(fmt.Sprint("d", d+1), "r1"))
	}
	ps, ds = append(ps, *at("new", "r1")), append(ds, *at("new", "r1"))
	var table order.LinkTable
	l.Fill(&table, ps, ds, now)
	var out strings.Builder
	fmt.Fprintf(&out, "%4s", "")
	for _, d := range ds {
		fmt.Fprintf(&out, "%6s", d.ID)
	}
	for i, p := range ps {
		fmt.Fprintf(&out, "\n%4s", p.ID)
		latency, perByte := table.Row(i, len(ds))
		for k := range ds {
			fmt.Fprintf(&out, "%6.1f", (latency[k]+1e9*perByte[k])/0.0202)
		}
	}
	return out.String() + "\n"
}
