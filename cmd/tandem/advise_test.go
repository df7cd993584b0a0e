package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/autoscale/mix"
	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pools/curve"
)

func TestAdvise_TableAndPictureOfATrace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	capacity, picture := filepath.Join(dir, "h100.json"), filepath.Join(dir, "advice.svg")
	f, err := os.Create(capacity)
	if err != nil {
		t.Fatal(err)
	}
	c := sizing.Capacity{Schema: 1, Prefill: curve.Curve{0.01, 0.0628, 0}, Step: curve.Curve{0.010, 50e-6, 0.03}, KVTokens: 350_000}
	if err := c.Write(f); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	root := rootCommand()
	root.SetOut(&out)
	root.SetArgs([]string{"advise", "--log", "../../loadtest/traces/mooncake_conversation.jsonl",
		"--hardware", "h100=" + capacity + ",cost=3,gpus=2", "--itl-slo", "40ms", "--svg", picture})
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{"disaggregated  ", "aggregated  ", "cheaper than servers that do both"} {
		if !strings.Contains(out.String(), words) {
			t.Errorf("no %q in:\n%s", words, &out)
		}
	}
	drawn, err := os.ReadFile(picture)
	if err != nil || !bytes.Contains(drawn, []byte("</svg>")) {
		t.Errorf("picture: %d bytes, %v", len(drawn), err)
	}
	for _, wrong := range []string{"h100", "h100=none.json", "h100=" + capacity + ",price=3", "h100=" + capacity + ",gpus=x"} {
		if _, err := mix.ParseVariant(wrong); err == nil {
			t.Errorf("%s is taken", wrong)
		}
	}
}
