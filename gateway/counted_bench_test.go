package gateway

import (
	"bytes"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
	"github.com/tandem-gateway/tandem/pools"
)

// BenchmarkCounted is a request of each kind, over TCP on all sides: what make instructions counts, which says what a
// change costs to a hundredth on a machine however busy. Client and engines are in it, and do little.
func BenchmarkCounted(b *testing.B) {
	const olderVLLM, newVLLM = "0.20.0", "0.32.0"
	b.Run("one-leg", func(b *testing.B) {
		count(b, nil, countedEngine{role: pools.Both, connector: "nixl", pages: vllmPages(olderVLLM), answer: wholeAnswer})
	})
	b.Run("nixl", func(b *testing.B) {
		count(b, nil, nixlPair(olderVLLM, prefillAnswer(countedTokens, "", ""), `"remote_request_id":`, wholeAnswer)...)
	})
	b.Run("vllm-0.32", func(b *testing.B) { // decode goes on behind prefill's token
		behind := strings.Replace(wholeAnswer, `"prompt_tokens":1000`, `"prompt_tokens":1001`, 1)
		count(b, nil, nixlPair(newVLLM, prefillAnswer(countedTokens, promptIDs(countedTokens, ""), `,"token_ids":[7]`), `"prompt_token_ids":[1000,`, behind)...)
	})
	b.Run("sglang", func(b *testing.B) {
		count(b, nil,
			countedEngine{role: pools.Prefill, connector: "sglang", pages: sglangPages("prefill"), wants: `"bootstrap_room":`, answer: wholeAnswer},
			countedEngine{role: pools.Decode, connector: "sglang", pages: sglangPages("decode"), wants: `"bootstrap_room":`, answer: wholeAnswer})
	})
	b.Run("looked-up", func(b *testing.B) { // a pair of NIXL, by what its servers hold of the prompt
		pair := nixlPair(olderVLLM, prefillAnswer(countedTokens, "", ""), `"remote_request_id":`, wholeAnswer)
		pair[0].answerWithIDs = prefillAnswer(countedTokens, promptIDs(countedTokens, ""), "")
		count(b, knowTokens(b), pair...)
	})
	b.Run("many", func(b *testing.B) { // a pair of NIXL, of 64 servers of each role
		pair := nixlPair(olderVLLM, prefillAnswer(countedTokens, "", ""), `"remote_request_id":`, wholeAnswer)
		countAmong(b, 64, pair)
	})
	b.Run("event", func(b *testing.B) { // of a stream, each of which comes when the client has read the one before
		countEvents(b)
	})
	// Streams behind prompts of 220 KB. Decode says the ids of the prompt, those of prefill's token with them where it goes
	// on behind that.
	b.Run("one-leg-long", func(b *testing.B) {
		countLong(b, nil, countedEngine{role: pools.Both, connector: "nixl", pages: vllmPages(olderVLLM), answer: longEvents("")})
	})
	b.Run("nixl-long", func(b *testing.B) {
		countLong(b, nil, nixlPair(olderVLLM, prefillAnswer(longTokens, "", ""), `"remote_request_id":`, longEvents(""))...)
	})
	b.Run("looked-up-long", func(b *testing.B) {
		pair := nixlPair(olderVLLM, prefillAnswer(longTokens, "", ""), `"remote_request_id":`, longEvents(""))
		pair[0].answerWithIDs = prefillAnswer(longTokens, promptIDs(longTokens, ""), "")
		countLong(b, knowTokens(b), pair...)
	})
	b.Run("vllm-0.32-long", func(b *testing.B) {
		prefill := prefillAnswer(longTokens, promptIDs(longTokens, ""), `,"token_ids":[7]`)
		countLong(b, nil, nixlPair(newVLLM, prefill, `"prompt_token_ids":[1000,`, longEvents(",7"))...)
	})
	b.Run("sglang-long", func(b *testing.B) {
		countLong(b, nil,
			countedEngine{role: pools.Prefill, connector: "sglang", pages: sglangPages("prefill"), wants: `"bootstrap_room":`, answer: wholeAnswer},
			countedEngine{role: pools.Decode, connector: "sglang", pages: sglangPages("decode"), wants: `"bootstrap_room":`, answer: tenEvents("")})
	})
}

// count counts a request of 4 KB that these engines answer. before changes a gateway before it serves; nil: nothing.
func count(b *testing.B, before func(*Server), engines ...countedEngine) {
	countRequest(b, before, chatOf(270, ""), engines...)
}

// countAmong counts a request of 4 KB before so many servers of each of these engines. Nearly all of them have a connection
// before it begins.
func countAmong(b *testing.B, servers int, engines []countedEngine) {
	for i := range engines {
		engines[i].servers = servers
	}
	g, conn := startCounting(b, nil, engines...)
	defer g.decide()()
	request := g.raw(chatOf(270, ""))
	askOften(b, g.dial(), request, 4*servers)
	b.ResetTimer()
	askOften(b, conn, request, b.N)
}

// countLong counts a stream behind a prompt of 220 KB.
func countLong(b *testing.B, before func(*Server), engines ...countedEngine) {
	countRequest(b, before, chatOf(220<<10/15, `,"stream":true`), engines...)
}

// countEvents counts an event of a stream that goes on.
func countEvents(b *testing.B) {
	due := make(chan struct{})
	engine := countedEngine{role: pools.Both, connector: "nixl", pages: vllmPages("0.20.0"), due: due}
	g, conn := startCounting(b, nil, engine)
	defer g.decide()()
	defer func() { _ = conn.Close() }()
	defer close(due)
	if _, err := conn.Write(g.raw(strings.Replace(chatOf(270, `,"stream":true`), `"max_tokens":16`, `"max_tokens":50000`, 1))); err != nil {
		b.Fatal(err)
	}
	room := make([]byte, 4<<10)
	const begun = 100 // events, behind which a loop follows the stream
	for i := range begun + b.N {
		if i == begun {
			b.ResetTimer()
		}
		due <- struct{}{}
		if n, err := conn.Read(room); err != nil || !bytes.HasSuffix(room[:n], []byte("\n\n\r\n")) {
			b.Fatalf("%v after %q", err, room[:n])
		}
	}
	b.StopTimer()
}

func countRequest(b *testing.B, before func(*Server), chat string, engines ...countedEngine) {
	g, conn := startCounting(b, before, engines...)
	defer g.decide()()
	request := g.raw(chat)
	b.ResetTimer()
	askOften(b, conn, request, b.N)
}

// startCounting runs a gateway before engines, and returns a connection to it.
func startCounting(b *testing.B, before func(*Server), engines ...countedEngine) (g *running, conn net.Conn) {
	of := usual(b)
	of.cost.PairsFirst = true
	of.before = func(s *Server) {
		bindLate(s)
		if before != nil {
			before(s)
		}
	}
	transport := enginehttp.NewTransport(10 * time.Second)
	transport.IdleTimeout = time.Hour // of engines that close none
	b.Cleanup(transport.CloseIdleConnections)
	var specs []pools.Spec
	for _, e := range engines {
		for _, url := range e.serve(b) {
			specs = append(specs, pools.Spec{URL: url, Role: e.role, Connector: e.connector})
		}
	}
	g = run(b, of, transport.RoundTrip, specs...)
	return g, g.dial()
}

// knowTokens has a gateway look prompts up, whose tokens answers show.
func knowTokens(b *testing.B) func(*Server) {
	index, err := kvstate.New(kvstate.Default())
	if err != nil {
		b.Fatal(err)
	}
	locality := pd.NewLocality(index, func(model string) (*tokens.Source, error) {
		cfg := tokens.Default()
		cfg.Mode, cfg.Model = tokens.Learned, model
		return tokens.New(cfg, nil, nil)
	})
	b.Cleanup(locality.Close)
	return func(s *Server) { s.pd.Binder.Locality = locality }
}

// countedEngine answers all requests alike, and probes by its pages.
type countedEngine struct {
	role          pools.Role
	servers       int // which it is, at loopback addresses of their own; 0: one
	connector     string
	pages         map[string]string // by path
	wants         string            // in each request: without it the gateway does not do what is to be counted
	answer        string
	answerWithIDs string          // where it is asked for token ids; "": answer
	due           <-chan struct{} // has a value for each event of the stream that it answers; nil: it does not
}

func nixlPair(version, prefillAnswer, handoff, answer string) []countedEngine {
	return []countedEngine{
		{role: pools.Prefill, connector: "nixl", pages: vllmPages(version), wants: `"do_remote_decode":true`, answer: prefillAnswer},
		{role: pools.Decode, connector: "nixl", pages: vllmPages(version), wants: handoff, answer: answer},
	}
}

// countedTokens is how many tokens a prompt has by wholeAnswer, longTokens how many one of 220 KB has, both in blocks of 16.
const countedTokens, longTokens, countedBlock = 1000, 55_000, 16

// promptIDs are the tokens of a prompt, and more behind them, as a member of an answer.
func promptIDs(n int, more string) string {
	return `,"prompt_token_ids":` + strings.TrimSuffix(idsFrom(1000, n), "]") + more + "]"
}

// longEvents are decode's behind a long prompt, the first of which has its ids, and more behind them.
func longEvents(more string) string { return tenEvents(promptIDs(longTokens, more)) }

// tenEvents are a stream of ten tokens. The first event has more members.
func tenEvents(more string) string {
	const event = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1790000000,"model":"m","choices":[{"index":0,"delta":{%s},"logprobs":null,"finish_reason":null%s}]%s}` + "\n\n"
	said := fmt.Sprintf(event, `"role":"assistant","content":""`, "", more)
	for i := range 10 {
		said += fmt.Sprintf(event, `"content":" and"`, fmt.Sprintf(`,"token_ids":[%d]`, 100+i), "")
	}
	return said + "data: [DONE]\n\n"
}

// idsFrom is a list of so many numbers.
func idsFrom(first, n int) string {
	list := []byte("[")
	for i := range n {
		list = append(strconv.AppendInt(list, int64(first+i), 10), ',')
	}
	return string(append(list[:len(list)-1], ']'))
}

// prefillAnswer is that of a vLLM with NIXL, with more members of the answer and of its choice.
func prefillAnswer(prompt int, more, ofChoice string) string {
	return fmt.Sprintf(`{"id":"chatcmpl-1","object":"chat.completion","created":1790000000,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Well, "},"logprobs":null,"finish_reason":"length","stop_reason":null%s}],`+
		`"usage":{"prompt_tokens":%d,"completion_tokens":1,"total_tokens":%d}%s,"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[%s],`+
		`"remote_engine_id":"5a2b7c1e-prefill","remote_request_id":"chatcmpl-1-0000","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1,"remote_num_tokens":%d}}`,
		ofChoice, prompt, prompt+1, more, idsFrom(1, (prompt+countedBlock-1)/countedBlock), prompt)
}

// vllmPages are what a vLLM answers to probes.
func vllmPages(version string) map[string]string {
	return map[string]string{
		"/health":    "",
		"/v1/models": `{"data":[{"id":"m","owned_by":"vllm","max_model_len":100000}]}`,
		"/version":   `{"version":"` + version + `"}`,
		"/metrics":   `vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="100000"} 1` + "\n",
	}
}

// sglangPages are what an SGLang answers to probes.
func sglangPages(mode string) map[string]string {
	return map[string]string{
		"/ready":       "",
		"/v1/models":   `{"data":[{"id":"m","owned_by":"sglang","max_model_len":100000}]}`,
		"/server_info": `{"version":"0.5.23","disaggregation_mode":"` + mode + `","disaggregation_bootstrap_port":8998,"page_size":16}`,
		"/metrics":     "",
	}
}

// serve returns the URLs of its servers.
func (e *countedEngine) serve(b *testing.B) (urls []string) {
	address := "127.0.0.1:0"
	if e.servers > 0 {
		address = "0.0.0.0:0"
	}
	listener, err := net.Listen("tcp4", address)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = listener.Close() })
	answer, answerWithIDs := message("200 OK", e.answer), message("200 OK", e.answerWithIDs)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				for room := make([]byte, 1<<20); ; {
					request, err := readMessage(conn, room)
					if err != nil {
						return
					}
					said := answer
					switch {
					case !bytes.HasPrefix(request, []byte("POST ")):
						said = e.page(request)
					case e.due != nil:
						said = e.stream(conn)
					case e.answerWithIDs != "" && bytes.Contains(request, []byte(`"return_token_ids":true`)):
						said = answerWithIDs
					case !bytes.Contains(request, []byte(e.wants)):
						said = message("400 Bad Request", `{"error":{"message":"it has no `+strings.ReplaceAll(e.wants, `"`, "'")+`"}}`)
					}
					if _, err := conn.Write(said); err != nil {
						return
					}
				}
			}()
		}
	}()
	if e.servers == 0 {
		return []string{"http://" + listener.Addr().String()}
	}
	for i := range e.servers {
		urls = append(urls, fmt.Sprintf("http://127.0.1.%d:%d", i, listener.Addr().(*net.TCPAddr).Port))
	}
	return urls
}

// stream writes an event whenever one is due, and returns the end of the stream.
func (e *countedEngine) stream(conn net.Conn) (end []byte) {
	pieces := bytes.SplitAfter(message("200 OK", tenEvents(promptIDs(countedTokens, ""))), []byte("\n\n\r\n"))
	begin, event, last := pieces[0], pieces[1], len(pieces)-2
	_, err := conn.Write(begin)
	for range e.due {
		if err == nil {
			_, err = conn.Write(event)
		}
	}
	return bytes.Join(pieces[last:], nil)
}

// page is the answer to a probe.
func (e *countedEngine) page(request []byte) []byte {
	target, _, _ := strings.Cut(strings.TrimPrefix(string(request), "GET "), " ")
	path, _, _ := strings.Cut(target, "?")
	if text, known := e.pages[path]; known {
		return message("200 OK", text)
	}
	return message("404 Not Found", "")
}

// message is an answer over HTTP.
func message(status, body string) []byte {
	if strings.HasPrefix(body, "data: ") { // a chunk for each event
		said := fmt.Appendf(nil, "HTTP/1.1 %s\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n", status)
		for event := range strings.SplitAfterSeq(body, "\n\n") {
			said = fmt.Appendf(said, "%x\r\n%s\r\n", len(event), event) // the last one is empty
		}
		return said
	}
	return fmt.Appendf(nil, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
}

// readMessage reads a request or an answer that fits into room: its head, and as much of a body as that says, or up to its
// last chunk.
func readMessage(conn net.Conn, room []byte) ([]byte, error) {
	const length = "Content-Length: "
	read, end, chunked := 0, -1, false
	for read != end {
		n, err := conn.Read(room[read:])
		if read += n; err != nil {
			return room[:read], err
		}
		if chunked = chunked || end < 0 && bytes.Contains(room[:read], []byte("Transfer-Encoding: chunked")); chunked {
			if bytes.HasSuffix(room[:read], []byte("\r\n0\r\n\r\n")) {
				break
			}
			continue
		}
		head := bytes.Index(room[:read], []byte("\r\n\r\n"))
		if end >= 0 || head < 0 {
			continue
		}
		end = head + len("\r\n\r\n")
		if at := bytes.Index(room[:head+2], []byte(length)); at >= 0 {
			digits, _, _ := bytes.Cut(room[at+len(length):head+2], []byte("\r"))
			body, err := strconv.Atoi(string(digits))
			if err != nil {
				return room[:read], err
			}
			end += body
		}
	}
	return room[:read], nil
}
