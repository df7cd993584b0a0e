package picker

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// benchProxyOf names, in the environment, the picker that this process of the test asks in place of
// running tests.
const benchProxyOf = "TANDEM_BENCH_PROXY_OF"

// benchProxy is a process that asks a picker: it reads numbers of picks, and answers each with two
// quantiles, in microseconds.
type benchProxy struct {
	in  io.Writer
	out *bufio.Reader
}

func startBenchProxy(b *testing.B, f *pickerFixture) *benchProxy {
	ctx, cancel := context.WithCancel(context.Background())
	process := exec.CommandContext(ctx, os.Args[0])
	scheme := "plain"
	if f.encrypted {
		scheme = "tls"
	}
	process.Env, process.Stderr = append(os.Environ(), benchProxyOf+"="+scheme+"://"+f.conn.Target()), os.Stderr
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
	scheme, address, _ := strings.Cut(target, "://")
	encrypted := insecure.NewCredentials()
	if scheme == "tls" {
		encrypted = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(encrypted))
	if err != nil {
		return err
	}
	defer conn.Close()
	client := extproc.NewExternalProcessorClient(conn)
	for made := 0; ; {
		var n int
		if _, err := fmt.Fscanln(os.Stdin, &n); err != nil {
			return nil
		}
		took := make([]float64, n)
		for i := range took {
			picked, err := askOnce(client, benchPrompt(made/2))
			if err != nil {
				return err
			}
			took[i] = float64(picked.Nanoseconds()) / 1e3
			made++
		}
		slices.Sort(took)
		fmt.Println(took[n/2], took[n*99/100])
	}
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
	messages := []*extproc.ProcessingRequest{{Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{
		Headers: headerList(":method", "POST", ":path", chatPath, ":authority", "gateway", "content-type", "application/json",
			"content-length", strconv.Itoa(len(body)), "user-agent", "OpenAI/Python 2.1"),
	}}}}
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
