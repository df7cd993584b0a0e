package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/tandem-gateway/tandem/loadtest"
	"github.com/tandem-gateway/tandem/loadtest/process"
)

// soakEvery is how often a soak looks at the gateway.
const soakEvery = 2 * time.Second

// gauge is something of the gateway that must not grow.
type gauge struct {
	name   string
	metric string
	unit   float64 // what it is divided by for people
	noise  float64 // a change below it is none, in the metric's unit
}

// gauges are what a soak watches. The heap is known by the size at which it is
// collected next, twice what was alive: what is in use goes up and down.
var gauges = []gauge{
	{"heap (MB)", "go_memstats_next_gc_bytes", 1 << 20, 4 << 20},
	{"goroutines", "go_goroutines", 1, 10},
	{"descriptors", "process_open_fds", 1, 10},
}

// maxSlope is how much of its mean a gauge may grow in an hour, 0..1.
const maxSlope = 0.01

// Slope is how a gauge went.
type Slope struct {
	Name      string
	Mean      float64
	PerHour   float64 // of the regression, in units an hour
	OfMean    float64 // the same as a share of the mean
	Growing   bool
	Unchanged bool // the whole change is below what is noise
}

// soakRounds is how often the same requests are sent. What the gateway remembers of
// prompts is bounded by bytes and fills for an hour if all differ; from the second
// round on it knows them all.
const soakRounds = 10

// Soak sends load for a time and finds what grows. The first fifth is for warming up.
func Soak(ctx context.Context, from process.Programs, dir string, d time.Duration, log io.Writer) (slopes []Slope, failed int, err error) {
	c := Scenario{Name: "soak", Title: "nothing breaks", Fleet: Fleet{KVEvents: true}, Load: Load{RPS: 30, For: d / soakRounds}}.standard()
	st, err := newTestbed(ctx, from, dir, c)
	if err != nil {
		return nil, 0, err
	}
	samples, failed, err := st.soak(ctx, c.Load, d, log)
	if err = errors.Join(err, st.close()); err != nil {
		return nil, 0, err
	}
	for i, g := range gauges {
		slopes = append(slopes, slopeOf(g, i, samples))
	}
	return slopes, failed, nil
}

// soak sends the load in each round, and samples the gauges meanwhile. It ends early, with an error,
// where it is interrupted or the gauges cannot be read.
func (st *testbed) soak(ctx context.Context, l Load, d time.Duration, log io.Writer) (samples []sample, failed int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watched := make(chan []sample, 1)
	go func() {
		samples, err := st.watch(ctx, d, log)
		if err != nil {
			cancel(err)
		}
		watched <- samples
	}()
	cfg := l.config("http://"+st.targetGateways(Load{})[0].addr, 1, 1)
	for range soakRounds {
		report, runErr := loadtest.Run(ctx, cfg, nil)
		if runErr != nil {
			err = runErr
			break
		}
		if report.Interrupted {
			err = context.Cause(ctx)
			break
		}
		failed += report.Requests.Failed
	}
	cancel(nil)
	return <-watched, failed, err
}

// sample is the gauges at one time.
type sample struct {
	at     time.Duration
	values []float64 // as gauges
}

// sampleOf reads the gauges. One that is not there is an error: it could grow unseen.
func sampleOf(at time.Duration, m process.Metrics) (sample, error) {
	one := sample{at: at}
	for _, g := range gauges {
		v := m.Sum(g.metric)
		if v == 0 {
			return sample{}, fmt.Errorf("the gateway does not report %s", g.metric)
		}
		one.values = append(one.values, v)
	}
	return one, nil
}

// watch takes samples until the context ends.
func (st *testbed) watch(ctx context.Context, d time.Duration, log io.Writer) ([]sample, error) {
	var samples []sample
	began := time.Now()
	tick := time.NewTicker(soakEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return samples, nil
		case <-tick.C:
		}
		m, err := process.ReadMetrics(ctx, st.targetGateways(Load{})[0].admin)
		if ctx.Err() != nil {
			return samples, nil
		}
		if err != nil {
			return nil, fmt.Errorf("watch the gateway: %w", err)
		}
		one, err := sampleOf(time.Since(began), m)
		if err != nil {
			return nil, err
		}
		if n%15 == 14 {
			fmt.Fprintf(log, "%v of %v: heap %.1f MB, %.0f goroutines, %.0f descriptors, %.0f requests\n", one.at.Round(time.Second), d,
				one.values[0]/(1<<20), one.values[1], one.values[2], m.Sum("tandem_requests_total"))
		}
		if one.at > d/5 {
			samples = append(samples, one)
		}
	}
}

// slopeOf fits a line through the i-th value of the samples (least squares).
func slopeOf(g gauge, i int, samples []sample) Slope {
	n, sumT, sumV, sumTT, sumTV := float64(len(samples)), 0.0, 0.0, 0.0, 0.0
	for _, one := range samples {
		t, v := one.at.Hours(), one.values[i]
		sumT, sumV, sumTT, sumTV = sumT+t, sumV+v, sumTT+t*t, sumTV+t*v
	}
	out := Slope{Name: g.name}
	spread := n*sumTT - sumT*sumT
	if n < 2 || spread == 0 {
		return out
	}
	perHour := (n*sumTV - sumT*sumV) / spread
	whole := perHour * (samples[len(samples)-1].at - samples[0].at).Hours()
	out.Mean, out.PerHour = sumV/n/g.unit, perHour/g.unit
	out.OfMean = perHour / (sumV / n)
	out.Unchanged = whole < g.noise
	out.Growing = !out.Unchanged && out.OfMean > maxSlope
	return out
}

// WriteSlopes writes them for a reader.
func WriteSlopes(w io.Writer, slopes []Slope) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "gauge\tmean\tslope an hour\tof the mean\t\t")
	for _, s := range slopes {
		verdict := "flat"
		switch {
		case s.Growing:
			verdict = "GROWS"
		case s.Unchanged && s.OfMean > maxSlope:
			verdict = "within noise"
		}
		fmt.Fprintf(table, "%s\t%.1f\t%+.2f\t%+.2f %%\t%s\t\n", s.Name, s.Mean, s.PerHour, 100*s.OfMean, verdict)
	}
	return table.Flush()
}
