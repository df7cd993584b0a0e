package pd

import (
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
)

// Reading one model's tokenizer delays no request of another, and its own ones little.
func TestLocality_ASourceThatIsSlowToOpenDelaysNobody(t *testing.T) {
	release := make(chan struct{})
	l := NewLocality(nil, func(model string) (*tokens.Source, error) {
		if model == "slow" {
			<-release
		}
		cfg := tokens.Default()
		cfg.Model, cfg.Mode = model, tokens.Approximate
		return tokens.New(cfg, nil, nil)
	})
	defer l.Close()
	if l.source("slow") != nil {
		t.Error("it is there before it was opened")
	}
	quick := make(chan *tokens.Source)
	go func() { quick <- l.source("quick") }()
	select {
	case s := <-quick:
		if s == nil {
			t.Error("another model's source is not there")
		}
	case <-time.After(30 * time.Second):
		t.Error("another model's request waits for it")
	}
	close(release)
	for deadline := time.Now().Add(30 * time.Second); l.source("slow") == nil; {
		if time.Now().After(deadline) {
			t.Fatal("it is never there")
		}
	}
}
