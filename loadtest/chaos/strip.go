package chaos

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"time"

	"github.com/tandem-gateway/tandem/loadtest"
	"github.com/tandem-gateway/tandem/loadtest/svg"
)

// strip is what a scenario's picture shows: its requests and events over time.
type strip struct {
	length   time.Duration // of the arrivals
	slow     time.Duration // a longer time to the first token counts as one that a failure cost
	requests []arrival
	events   Events
}

// arrival is a request by when it was due.
type arrival struct {
	at     time.Duration
	ttft   time.Duration
	failed bool
}

// stripOf keeps what the picture needs of requests in the order of their arrival.
func stripOf(ended []loadtest.Ended, c Scenario) strip {
	s := strip{length: c.Load.For, slow: math.MaxInt64, events: c.Events}
	if len(c.Events) > 0 {
		s.slow = slowTTFT(ended, c.Events[0].at)
	}
	for _, r := range ended {
		s.requests = append(s.requests, arrival{at: r.Due, ttft: r.TTFT, failed: r.Kind != loadtest.OK})
	}
	return s
}

// draw is the picture: a dot a request at its time to the first token, logarithmic, a cross at the
// upper edge for one that failed, a numbered line an event.
func (s strip) draw() template.HTML {
	if len(s.requests) == 0 {
		return ""
	}
	const left, right, top, bottom = 54.0, 12.0, 24.0, 22.0
	d := &svg.Drawing{Width: 720, Height: 150}
	end := s.length
	for _, r := range s.requests {
		end = max(end, r.at)
	}
	x := func(at time.Duration) float64 { return left + (d.Width-left-right)*at.Seconds()/end.Seconds() }
	y := s.scale(top+6, d.Height-bottom)
	for _, tick := range []time.Duration{lowest, 10 * lowest, 100 * lowest, 1000 * lowest} {
		if at := y(tick); at > top {
			d.Add(`<line x1="%.0f" x2="%.0f" y1="%.1f" y2="%.1f" class="grid"/>`, left, d.Width-right, at, at)
			d.Text(left-6, at+4, "end", "soft", seconds(tick.Seconds()))
		}
	}
	step := max(time.Second, (end / 8).Round(time.Second))
	for at := time.Duration(0); at <= end; at += step {
		d.Text(x(at), d.Height-6, "middle", "soft", at.String())
	}
	for i, e := range s.events {
		d.Add(`<line x1="%.1f" x2="%.1f" y1="%.0f" y2="%.0f" class="event"><title>%s</title></line>`, x(e.at), x(e.at), top-6, d.Height-bottom, html.EscapeString(e.label))
		d.Text(x(e.at), top-10, "middle", "", fmt.Sprint(i+1))
	}
	for _, r := range s.requests {
		switch {
		case r.failed:
			d.Add(`<path d="M%.1f %.1f l7 7 m0 -7 l-7 7" class="failed"/>`, x(r.at)-3.5, top-3)
		case r.ttft > s.slow:
			d.Add(`<circle cx="%.1f" cy="%.1f" r="3" class="slow"/>`, x(r.at), y(r.ttft))
		default:
			d.Add(`<circle cx="%.1f" cy="%.1f" r="2" class="fine"/>`, x(r.at), y(r.ttft))
		}
	}
	return d.HTML("time to the first token of each request, and what happened when")
}

// lowest is the time to the first token at the lower edge of a picture: shorter ones lie on it.
const lowest = 10 * time.Millisecond

// scale maps times to first tokens to heights between two, the longest of them near the top, which
// is half a second at least; each decade is as high as another.
func (s strip) scale(top, bottom float64) func(time.Duration) float64 {
	most := 500 * time.Millisecond
	for _, r := range s.requests {
		most = max(most, r.ttft)
	}
	decades := math.Log10(most.Seconds() / lowest.Seconds())
	return func(ttft time.Duration) float64 {
		return bottom - (bottom-top)*math.Log10(max(ttft, lowest).Seconds()/lowest.Seconds())/decades
	}
}
