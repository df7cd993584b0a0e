package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The pairs stand in the order of the admin port, slowest first, no more than are asked for, with
// what is blamed.
func TestLinks_PrintsTheSlowestFirst(t *testing.T) {
	pairs := `{"prefill":"p1:8000","decode":"d1:8000","distance":"rack","transfers":40,"moving":2,"measured":7.9,"slower":6.2,"blamed":"pair"},
		{"prefill":"p2:8000","decode":"d1:8000","transfers":0,"moving":0,"slower":7.4,"blamed":"pair","failed_at":"2026-01-01T10:00:00Z"}`
	for range 30 {
		pairs += `,{"prefill":"p3:8000","decode":"d1:8000","distance":"zone","transfers":3,"moving":0,"measured":1,"slower":1}`
	}
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/debug/links" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(`{"classes":[{"distance":"host","latency_ms":0.05,"gb_per_second":200},{"distance":"rack","latency_ms":0.2,"gb_per_second":48.75}],"pairs":[` + pairs + `],"silent":{"tandem-2":"connection refused"}}`))
	}))
	defer admin.Close()
	out, err := run(t, "links", "--admin", admin.URL)
	want := `class  latency ms  GB/s
host   0.05        200.0
rack   0.20        48.8

prefill  decode   class  transfers  moving  measured  taken for  blamed
p1:8000  d1:8000  rack   40         2       7.9x      6.2x       pair
p2:8000  d1:8000  -      0          0       -         7.4x       pair, failed 10:00:00
p3:8000  d1:8000  zone   3          0       1.0x      1.0x       -
`
	if err != nil || !strings.HasPrefix(out, want) || !strings.HasSuffix(out, "\nand 12 more pairs: --all\nno answer of gateway tandem-2: connection refused\n") {
		t.Errorf("%v\n%s", err, out)
	}
	if all, err := run(t, "links", "--all", "--admin", admin.URL); err != nil || strings.Count(all, "p3:8000") != 30 || strings.Contains(all, "more pairs") {
		t.Errorf("%v\n%s", err, all)
	}
	if asJSON, err := run(t, "links", "--json", "--admin", admin.URL); err != nil || strings.Count(asJSON, `"prefill": "p3:8000"`) != 30 {
		t.Errorf("%v\n%s", err, asJSON)
	}
}
