package picker

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// benchProxyOf names, in the environment, the picker that this process of the test asks in place of
// running tests.
const benchProxyOf = "TANDEM_BENCH_PROXY_OF"

// Ways of a benchProxy to ask: one that streams bodies and sees an answer of one piece, where it is "".
const (
	keepsBodies  = "+buffered" // until the request is answered
	streamsWords = "+pieces"   // of an answer to a short prompt: piecesShown
	showsAlone   = "+shown"    // likewise, and it sends the pieces on as they are
	manyAtOnce   = "+many"     // requests over its one connection: askedAtOnce
)

// askedAtOnce is how many requests are under way where there are many, so that the picker is never idle.
const askedAtOnce = 16

// piecesShown is how many pieces a streamed answer of askStreamed has, each there and back.
const piecesShown = 1000

// benchProxy is a process that asks a picker: it reads numbers of picks, and answers each with two
// quantiles, in microseconds.
type benchProxy struct {
	in  io.Writer
	out *bufio.Reader
}

func startBenchProxy(b *testing.B, address string, encrypted bool, way string) *benchProxy {
	ctx, cancel := context.WithCancel(context.Background())
	process := exec.CommandContext(ctx, os.Args[0])
	scheme := "plain"
	if encrypted {
		scheme = "tls"
	}
	process.Env, process.Stderr = append(os.Environ(), benchProxyOf+"="+scheme+way+"://"+address), os.Stderr
	in, err := process.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := process.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := process.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		cancel()
		_ = process.Wait()
	})
	return &benchProxy{in, bufio.NewReader(out)}
}

// picks has so many made, and returns quantiles of their duration in microseconds.
func (p *benchProxy) picks(b *testing.B, n int) (half, most float64) {
	_, err := fmt.Fprintln(p.in, n)
	if err == nil {
		_, err = fmt.Fscanln(p.out, &half, &most)
	}
	if err != nil {
		b.Fatal(err)
	}
	return half, most
}

// runBenchProxy is the process.
func runBenchProxy(target string) error {
	debug.SetGCPercent(800) // its collector is not the picker's time
	scheme, address, _ := strings.Cut(target, "://")
	scheme, many := strings.CutSuffix(scheme, manyAtOnce)
	scheme, shows := strings.CutSuffix(scheme, showsAlone)
	scheme, pieces := strings.CutSuffix(scheme, streamsWords)
	scheme, keeps := strings.CutSuffix(scheme, keepsBodies)
	encrypted := insecure.NewCredentials()
	if scheme == "tls" {
		encrypted = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(encrypted))
	if err != nil {
		return err
	}
	defer conn.Close()
	client, ask := extproc.NewExternalProcessorClient(conn), askOnce
	if keeps {
		ask = askBuffered
	}
	if pieces {
		ask = func(client extproc.ExternalProcessorClient, _ []byte) (time.Duration, error) {
			return askStreamed(client, shows)
		}
	}
	clients := 1
	if many {
		clients = askedAtOnce
	}
	for made := 0; ; {
		var n int
		if _, err := fmt.Fscanln(os.Stdin, &n); err != nil {
			return nil
		}
		took, err := askAll(n, clients, func(i int) (time.Duration, error) { return ask(client, benchPrompt((made+i)/2)) })
		if err != nil {
			return err
		}
		made += n
		fmt.Println(took[n/2], took[n*99/100])
	}
}

// askAll asks n times, so many at once, and returns how long each took in microseconds, the shortest first.
func askAll(n, atOnce int, ask func(i int) (time.Duration, error)) ([]float64, error) {
	took := make([]float64, n)
	var next atomic.Int64
	var asking errgroup.Group
	for range atOnce {
		asking.Go(func() error {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				picked, err := ask(i)
				if err != nil {
					return err
				}
				took[i] = float64(picked.Nanoseconds()) / 1e3
			}
			return nil
		})
	}
	err := asking.Wait()
	slices.Sort(took)
	return took, err
}

// benchPrompt is a chat of 220 KB, of English words in an order of their own for each number.
func benchPrompt(number int) []byte {
	words := strings.Fields("the river is deep and wide so tell me of its harbour, where forty ships lie; 3 of them sail at (noon)")
	var text strings.Builder
	for state := uint32(number) + 1; text.Len() < 220_000; {
		state = state*1664525 + 1013904223
		text.WriteString(words[state>>16%uint32(len(words))] + " ")
	}
	return []byte(`{"model":"m","messages":[{"role":"user","content":"` + text.String() + `"}],"max_tokens":8}`)
}

// askOnce has one pick made, shows its answer, and returns how long the pick took from the end of the
// request.
func askOnce(client extproc.ExternalProcessorClient, body []byte) (took time.Duration, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := client.Process(ctx)
	if err != nil {
		return 0, err
	}
	messages := []*extproc.ProcessingRequest{benchHead(body)}
	for piece := range slices.Chunk(body, 16<<10) {
		messages = append(messages, &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestBody{RequestBody: &extproc.HttpBody{Body: piece}}})
	}
	messages[len(messages)-1].GetRequestBody().EndOfStream = true
	for _, m := range messages {
		if err := stream.Send(m); err != nil {
			return 0, err
		}
	}
	sent, got := time.Now(), 0
	for got < len(body) {
		m, err := stream.Recv()
		if err != nil || m.GetImmediateResponse() != nil {
			return 0, fmt.Errorf("%v, %v", err, m)
		}
		if m.GetRequestHeaders() != nil {
			took = time.Since(sent)
		}
		got += len(m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody())
	}
	return took, showAnswer(stream)
}

func benchHead(body []byte) *extproc.ProcessingRequest {
	return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{
		Headers: headerList(":method", "POST", ":path", chatPath, ":authority", "gateway", "content-type", "application/json",
			"content-length", strconv.Itoa(len(body)), "user-agent", "OpenAI/Python 2.1"),
	}}}
}

// askBuffered is askOnce of a proxy that keeps the request until it is answered.
func askBuffered(client extproc.ExternalProcessorClient, body []byte) (took time.Duration, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := client.Process(ctx)
	if err != nil {
		return 0, err
	}
	head := benchHead(body)
	head.ProtocolConfig = &extproc.ProtocolConfiguration{RequestBodyMode: buffered, ResponseBodyMode: fullDuplex}
	var sent time.Time
	for _, m := range []*extproc.ProcessingRequest{head, {Request: &extproc.ProcessingRequest_RequestBody{RequestBody: &extproc.HttpBody{Body: body, EndOfStream: true}}}} {
		if err := stream.Send(m); err != nil {
			return 0, err
		}
		sent = time.Now()
		if answer, err := stream.Recv(); err != nil || answer.GetImmediateResponse() != nil {
			return 0, fmt.Errorf("%v, %v", err, answer)
		}
	}
	return time.Since(sent), showAnswer(stream)
}

// showAnswer shows an answer of one piece, and takes it back.
func showAnswer(stream extproc.ExternalProcessor_ProcessClient) error {
	answer := []byte(`{"choices":[{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":50000,"completion_tokens":1}}`)
	for _, m := range []*extproc.ProcessingRequest{
		{Request: &extproc.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extproc.HttpHeaders{Headers: headerList(":status", "200", "content-type", "application/json")}}},
		{Request: &extproc.ProcessingRequest_ResponseBody{ResponseBody: &extproc.HttpBody{Body: answer, EndOfStream: true}}},
	} {
		if err := stream.Send(m); err != nil {
			return err
		}
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
	return nil
}

// askStreamed has a short request picked for, and shows its answer piece by piece as an engine's steps
// come: each when the one before is back. It returns what a piece took. The proxy that shows them alone
// sends them on as they are.
func askStreamed(client extproc.ExternalProcessorClient, alone bool) (took time.Duration, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := client.Process(ctx)
	if err != nil {
		return 0, err
	}
	body := []byte(`{"model":"m","messages":[{"role":"user","content":"hello"}],"max_tokens":8,"stream":true}`)
	head := benchHead(body)
	if alone {
		head.ProtocolConfig = &extproc.ProtocolConfiguration{RequestBodyMode: fullDuplex, ResponseBodyMode: filterv3.ProcessingMode_STREAMED}
	}
	show := func(answers int, m *extproc.ProcessingRequest) error {
		err := stream.Send(m)
		for ; err == nil && answers > 0; answers-- {
			var answer *extproc.ProcessingResponse
			if answer, err = stream.Recv(); answer.GetImmediateResponse() != nil {
				err = fmt.Errorf("refused: %v", answer)
			}
		}
		return err
	}
	err = errors.Join(
		show(0, head),
		show(2, &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestBody{RequestBody: &extproc.HttpBody{Body: body, EndOfStream: true}}}),
		show(1, &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extproc.HttpHeaders{
			Headers: headerList(":status", "200", "content-type", "text/event-stream")}}}),
	)
	begin := time.Now()
	for i := 0; i < piecesShown && err == nil; i++ {
		last := i == piecesShown-1
		event := eventOf("word")
		if last {
			event = "data: [DONE]\n\n"
		}
		err = show(1, &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseBody{ResponseBody: &extproc.HttpBody{Body: []byte(event), EndOfStream: last}}})
	}
	return time.Since(begin) / piecesShown, err
}
