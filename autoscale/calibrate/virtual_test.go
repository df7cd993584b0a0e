package calibrate

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// virtualEngine answers requests in the time that the formulas say and no other: it is
// an http.RoundTripper for a bubble of testing/synctest. Its steps are those of the
// simulated engine: prompts that have come are computed in one pass, and all that
// decode get one token.
type virtualEngine struct {
	kv   int
	wake chan struct{}

	mu      sync.Mutex // guards the rest
	most    int        // sequences that decode at once; 0: any number
	waiting []*virtualSequence
}

type virtualSequence struct {
	prompt, left, said int
	out                *io.PipeWriter
}

// newVirtualEngine runs until the test ends.
func newVirtualEngine(t *testing.T, kv int) *virtualEngine {
	e := &virtualEngine{kv: kv, wake: make(chan struct{}, 1)}
	var working sync.WaitGroup
	working.Go(func() { e.work(t) })
	t.Cleanup(working.Wait)
	return e
}

func (e *virtualEngine) work(t *testing.T) {
	var running []*virtualSequence
	for {
		e.mu.Lock()
		free := len(e.waiting)
		if e.most > 0 {
			free = min(free, e.most-len(running))
		}
		came := e.waiting[:free]
		e.waiting = e.waiting[free:]
		e.mu.Unlock()
		if len(running)+len(came) == 0 {
			select {
			case <-e.wake:
				continue
			case <-t.Context().Done():
				return
			}
		}
		prompts, held := 0, 0
		for _, s := range came {
			prompts += s.prompt
		}
		for _, s := range running {
			held += s.prompt + s.said
		}
		took := 0.0
		if prompts > 0 {
			took += truePrefill(float64(prompts))
		}
		if len(running) > 0 {
			took += trueStep(float64(held+prompts) / float64(e.kv))
		}
		time.Sleep(time.Duration(took * float64(time.Second)))
		running = append(running, came...)
		stay := running[:0]
		for _, s := range running {
			if s.say() {
				stay = append(stay, s)
			}
		}
		running = stay
	}
}

// say writes one token, and reports whether there are more.
func (s *virtualSequence) say() bool {
	s.said, s.left = s.said+1, s.left-1
	_, _ = io.WriteString(s.out, `data: {"choices":[{"text":"a"}]}`+"\n\n") // a reader that left is not missed
	if s.left > 0 {
		return true
	}
	_, _ = io.WriteString(s.out, "data: [DONE]\n\n")
	_ = s.out.Close()
	return false
}

// RoundTrip is of http.RoundTripper.
func (e *virtualEngine) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := func(body io.ReadCloser) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: body, Request: r, Header: http.Header{}}, nil
	}
	switch r.URL.Path {
	case "/v1/models":
		return answer(io.NopCloser(strings.NewReader(`{"data":[{"id":"virtual","max_model_len":16384}]}`)))
	case "/metrics":
		return answer(io.NopCloser(strings.NewReader(fmt.Sprintf("# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size=\"2\",kv_cache_size_tokens=\"%d\",num_gpu_blocks=\"%[1]d\"} 1\n", e.kv))))
	}
	var in struct {
		Prompt    []int `json:"prompt"`
		MaxTokens int   `json:"max_tokens"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return nil, err
	}
	read, write := io.Pipe()
	e.mu.Lock()
	e.waiting = append(e.waiting, &virtualSequence{prompt: len(in.Prompt), left: in.MaxTokens, out: write})
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
	return answer(read)
}
