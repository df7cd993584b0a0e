package serving

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/share"
)

// Four prefill servers of two kinds, which are equally fast: nothing but the plan tells them
// apart. It gives the short prompts to one of them, and there they go.
func TestShares_MoveRequestsToThePlannedHardware(t *testing.T) {
	t.Parallel()
	capacity := writeCapacity(t)
	c := newCluster(t, patiently(shape{prefill: 4, decode: 1,
		config: func(cfg *config) {
			cfg.scaling.Every = 100 * time.Millisecond
			cfg.scaling.hardware = []string{"a=" + capacity, "b=" + capacity}
			for i := range cfg.servers[0].specs {
				cfg.servers[0].specs[i].Variant = []string{"a", "b"}[i/2]
			}
			cfg.servers[1].specs[0].Variant = "a"
			if err := cfg.readModels(); err != nil {
				t.Fatal(err)
			}
		}}))
	kinds := make(map[string]string)
	for _, s := range c.node.fleet.Servers() {
		if s.Role == pools.Prefill {
			kinds[s.ID()] = s.Variant
		}
	}
	const short, long = 600, 6000 // words
	asked := 0
	var last answer
	ask := func(words, n int) (by map[string]int) {
		t.Helper()
		by = make(map[string]int)
		for range n {
			asked++
			body := fmt.Sprintf(`{"model":%q,"prompt":%q,"max_tokens":2}`, testModel, strings.Repeat(fmt.Sprintf("river%d ", asked), words))
			if last = c.post("/v1/completions", body); last.status != http.StatusOK {
				t.Fatalf("%d %s", last.status, last.body)
			}
			by[kinds[last.header.Get("X-Tandem-Prefill")]]++
		}
		return by
	}
	// By chance half of them would.
	eventuallyIn(t, 60*time.Second, "most short prompts go to the kind that they are planned for", func() bool {
		ask(long, 2)
		table, by := c.node.planner.Shares(testModel), ask(short, 12)
		if table == nil {
			return false
		}
		parts := table.Prefill[share.ClassOf(2*short, 2)]
		for kind := range parts {
			if parts[kind] > 0.9 && by[table.Variants[kind]] >= 9 {
				return true
			}
		}
		t.Logf("planned %.2f of %v, went %v", parts, table.Variants, by)
		return false
	})
	d, _ := c.explained(last.header.Get("X-Request-Id"))
	told := false
	for _, e := range d.Attempts[0].Alternatives {
		told = told || e.HardwareMismatch > 0
		if e.HardwareMismatch < 0 || e.HardwareMismatch > 0.301*e.Compute {
			t.Errorf("a hardware mismatch of %.2f ms where the prefill takes %.2f", e.HardwareMismatch, e.Compute)
		}
	}
	if !told {
		t.Errorf("no alternative says that it does not fit: %+v", d.Attempts[0].Alternatives)
	}
}

// writeCapacity is a file of what a server can do.
func writeCapacity(t *testing.T) (path string) {
	t.Helper()
	measured := sizing.Capacity{Schema: 1, Prefill: pools.Default().Prefill, Step: pools.Default().Step, KVTokens: 500_000}
	file, err := os.Create(filepath.Join(t.TempDir(), "capacity.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(measured.Write(file), file.Close()); err != nil {
		t.Fatal(err)
	}
	return file.Name()
}
