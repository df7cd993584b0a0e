package serving

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"
)

// longAnswerServer is an aggregated engine whose answers have so many bytes. Each ends once it may, that to the user "ada"
// at once.
func longAnswerServer(t *testing.T, bytes int, mayEnd <-chan struct{}) string {
	return aggregatedServer(t, func(w http.ResponseWriter, r *http.Request, body []byte) {
		fmt.Fprintf(w, `{"id":"req","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"stop"}]`, strings.Repeat("a", bytes))
		if gjson.GetBytes(body, "user").String() == "ada" {
			fmt.Fprint(w, "}")
			return
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-mayEnd:
			fmt.Fprint(w, "}")
		case <-r.Context().Done():
		}
	})
}

// aggregatedServer is the address of an aggregated engine that answers chats so.
func aggregatedServer(t *testing.T, answers func(w http.ResponseWriter, r *http.Request, body []byte)) string {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"object":"model","owned_by":"hf"}]}`, testModel)
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		answers(w, r, body)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

// Long answers that are not streamed have no more memory together than max-held: those beyond it are refused, and are
// not tried again, and the memory of each is free again when its client has it.
func TestLongAnswers_AreBoundedTogether(t *testing.T) {
	t.Parallel()
	const each = 3 << 20 // read into 4 MiB
	mayEnd := make(chan struct{})
	c := newCluster(t, shape{config: func(cfg *config) {
		cfg.pd.queue.MaxBytes = 9 << 20
		cfg.servers[1].add(serverEntry{URL: longAnswerServer(t, each, mayEnd), Connector: "aggregated"})
	}})
	eventually(t, "the server is up", func() bool { return c.metric("tandem_server_up", "") == 1 })
	const requests = 6
	answers := make(chan answer, requests)
	var clients sync.WaitGroup
	for range requests {
		clients.Go(func() { answers <- c.post("/v1/chat/completions", chatBody("")) })
	}
	eventually(t, "those beyond the bound are refused", func() bool { return c.metric("tandem_requests_total", `outcome="overloaded"`) >= requests-2 })
	close(mayEnd)
	clients.Wait()
	statuses := make(map[int]int)
	for range requests {
		got := <-answers
		statuses[got.status]++
		if got.status == http.StatusServiceUnavailable && gjson.Get(got.body, "error.code").String() != "overloaded" || got.status == http.StatusOK && len(got.body) < each {
			t.Errorf("%d %.200s", got.status, got.body)
		}
	}
	if statuses[200] < 1 || statuses[200] > 2 || statuses[200]+statuses[503] != requests {
		t.Errorf("answered with %v", statuses)
	}
	if retries := c.metric("tandem_retries_total", ""); retries != 0 {
		t.Errorf("%v retries", retries)
	}
	for range requests {
		if got := c.post("/v1/chat/completions", chatBody("")); got.status != http.StatusOK {
			t.Errorf("once they were sent: %d %.200s", got.status, got.body)
		}
	}
}

// Events that do not end have no more memory together than max-held either: of streams whose event is beyond it clients
// get a 503, no other server is asked, none is blamed, and the memory is free again when the events have ended.
func TestLongAnswers_EventsAreBoundedTogether(t *testing.T) {
	t.Parallel()
	mayEnd := make(chan struct{})
	url := aggregatedServer(t, func(w http.ResponseWriter, r *http.Request, body []byte) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, `data: {"id":"req","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":%q}`, strings.Repeat("a", 600<<10)) // read into 4 MiB
		_ = http.NewResponseController(w).Flush()
		if gjson.GetBytes(body, "user").String() == "eve" {
			return // inside of the event
		}
		select {
		case <-mayEnd:
			fmt.Fprint(w, `,"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
		case <-r.Context().Done():
		}
	})
	c := newCluster(t, shape{config: func(cfg *config) {
		cfg.pd.queue.MaxBytes = 10 << 20 // for two: with the event that is held back until its client has it
		cfg.servers[1].add(serverEntry{URL: url, Connector: "aggregated"})
	}})
	eventually(t, "the server is up", func() bool { return c.metric("tandem_server_up", "") == 1 })
	const requests = 6
	answers := make(chan answer, requests)
	var clients sync.WaitGroup
	for range requests {
		clients.Go(func() { answers <- c.post("/v1/chat/completions", chatBody(`,"stream":true`)) })
	}
	eventually(t, "those beyond the bound are refused", func() bool { return c.metric("tandem_requests_total", `outcome="overloaded"`) == requests-2 })
	close(mayEnd)
	clients.Wait()
	statuses := make(map[int]int)
	for range requests {
		got := <-answers
		statuses[got.status]++
	}
	if statuses[200] != 2 || statuses[503] != requests-2 {
		t.Errorf("answered with %v", statuses)
	}
	if retries, up := c.metric("tandem_retries_total", ""), c.metric("tandem_server_up", ""); retries != 0 || up != 1 {
		t.Errorf("%v retries, %v servers are up", retries, up)
	}
	for range requests {
		c.post("/v1/chat/completions", chatBody(`,"stream":true,"user":"eve"`))
		if refused := c.metric("tandem_requests_total", `outcome="overloaded"`); refused != requests-2 {
			t.Fatalf("events that broke off still take memory: %v are refused", refused)
		}
	}
	eventually(t, "it is tried again", func() bool {
		return c.post("/v1/chat/completions", chatBody(`,"stream":true`)).status == http.StatusOK
	})
	for range requests {
		if got := c.post("/v1/chat/completions", chatBody(`,"stream":true`)); got.status != http.StatusOK || len(got.text()) != 600<<10 {
			t.Errorf("once they have ended: %d %.200s", got.status, got.body)
		}
	}
}

// A tenant whose long answers do not end leaves room for those of others.
func TestLongAnswers_OfOneTenantLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	const each = 3 << 20 // read into 4 MiB
	mayEnd, keys := make(chan struct{}), filepath.Join(t.TempDir(), "keys.yaml")
	keysFile(t, keys, "sk-eve tenant=eve", "sk-ada tenant=ada")
	c := newCluster(t, shape{config: func(cfg *config) {
		cfg.pd.queue.MaxBytes = 13 << 20
		cfg.access.keysFile, cfg.gateway.SharedKV = keys, true
		cfg.servers[1].add(serverEntry{URL: longAnswerServer(t, each, mayEnd), Connector: "aggregated"})
	}})
	eventually(t, "the server is up", func() bool { return c.metric("tandem_server_up", "") == 1 })
	const requests = 6
	var clients sync.WaitGroup
	for range requests {
		clients.Go(func() { c.post("/v1/chat/completions", chatBody(""), "Authorization", "Bearer sk-eve") })
	}
	eventually(t, "eve's are refused but for those that are held", func() bool {
		return c.metric("tandem_requests_total", `outcome="overloaded"`) >= requests-3
	})
	if got := c.post("/v1/chat/completions", chatBody(`,"user":"ada"`), "Authorization", "Bearer sk-ada"); got.status != http.StatusOK || len(got.body) < each {
		t.Errorf("ada's: %d %.200s", got.status, got.body)
	}
	close(mayEnd)
	clients.Wait()
}
