package pd

import (
	"sync"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
)

// spoiledMemory overwrites a text once all who hold it have released it.
type spoiledMemory struct {
	mu      sync.Mutex // guards all below
	text    []byte
	holders int
	lost    bool
	spoiled bool
}

func (m *spoiledMemory) Hold() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holders++
}

func (m *spoiledMemory) Release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.holders--; m.holders > 0 || m.lost {
		return
	}
	for i := range m.text {
		m.text[i] = 0xDD
	}
	m.spoiled = true
}

func (m *spoiledMemory) Lose() {
	m.mu.Lock()
	m.lost = true
	m.mu.Unlock()
	m.Release()
}

func (m *spoiledMemory) isSpoiled() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.spoiled
}

// asksInMemory is a request whose text lies in memory that is overwritten when it is given back.
func (f *engineFleet) asksInMemory(d *api.Dialect, more string) (*Request, *spoiledMemory) {
	req := f.asks(d, more)
	m := &spoiledMemory{text: req.Body.Source(), holders: 1}
	req.Memory = m
	return req, m
}

// The memory of a client's text is given back once nothing reads it: of a stream when it is open, of a whole answer
// and of a failure when it is there. Whatever overwrites it then, answers are the same, also those that are continued.
func TestRun_GivesTheMemoryOfTheTextBack(t *testing.T) {
	for name, x := range map[string]struct {
		more  string
		d     *api.Dialect
		shape fleetShape
		fault engine.Fault
	}{
		"whole":            {`,"max_tokens":24`, api.Chat, fleetShape{prefill: 1, decode: 1}, engine.Fault{}},
		"stream":           {streamed, api.Chat, fleetShape{prefill: 1, decode: 1}, engine.Fault{}},
		"completion":       {streamed, api.Completions, fleetShape{prefill: 1, decode: 1}, engine.Fault{}},
		"decode alone":     {streamed, api.Chat, fleetShape{decode: 1}, engine.Fault{}},
		"a leg that fails": {streamed, api.Chat, fleetShape{prefill: 1, decode: 2}, engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 0, Count: 1}},
		"continued":        {streamed, api.Chat, fleetShape{prefill: 1, decode: 2}, engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 5, Count: 1}},
	} {
		f := newEngineFleet(t, x.shape)
		f.Transport, f.Config.ContinueByText = enginehttp.NewTransport(time.Second), false
		want := reference(t, f.asks(x.d, x.more))
		for _, e := range f.decode {
			if x.fault.Kind != "" {
				e.SetFault(x.fault)
			}
		}
		req, memory := f.asksInMemory(x.d, x.more)
		answer, err := f.Run(t.Context(), req)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		f.eventually(name+": it is given back", memory.isSpoiled)
		if got := readToEnd(answer); got.err != nil || got.text != want {
			t.Errorf("%s: %v: %q, want %q", name, got.err, got.text, want)
		}
		f.nothingIsLeft()
	}
}
