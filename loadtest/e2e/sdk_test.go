package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// call is one request as an application would make it through an SDK. The JSON form
// is what node/client.mjs reads.
type call struct {
	API       string `json:"api"` // "chat" or "completions"
	Model     string `json:"model"`
	Prompt    string `json:"prompt"`
	MaxTokens int    `json:"max_tokens"`
	Stream    bool   `json:"stream"`
	// Malformed sends "messages" as a string, which no engine accepts.
	Malformed bool `json:"malformed"`
}

// outcome is what the application got. The JSON form is what node/client.mjs prints.
type outcome struct {
	Text             string            `json:"text"`
	Finish           string            `json:"finish"`
	PromptTokens     int               `json:"prompt_tokens"`
	CompletionTokens int               `json:"completion_tokens"`
	CachedTokens     int               `json:"cached_tokens"`
	Chunks           int               `json:"chunks"` // with text in them
	Status           int               `json:"status"`
	Headers          map[string]string `json:"headers"` // names in lower case
	Raw              string            `json:"raw"`     // the answer's body as it came
	Error            *raised           `json:"error"`   // nil: the SDK said success
}

// raised is the SDK's exception.
type raised struct {
	Name    string `json:"name"`   // class (Node) or Go type
	Status  int    `json:"status"` // 0 where the SDK gives none, as for a broken stream
	Message string `json:"message"`
}

// sdk makes a call through a client library, with the library's own retries off.
type sdk struct {
	name string
	do   func(t *testing.T, gateway string, c call) outcome
}

var sdks = []sdk{
	{"openai-go", doWithGo},
	{"openai-node", doWithNode},
}

const callTimeout = 60 * time.Second

func doWithNode(t *testing.T, gateway string, c call) outcome {
	t.Helper()
	request, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "../../.cache/e2e/node-bin", "../../.cache/e2e/node/client.mjs", gateway)
	cmd.Stdin = bytes.NewReader(request)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	printed, err := cmd.Output()
	if err != nil {
		t.Fatalf("the Node client failed: %v\n%s", err, stderr.String())
	}
	var o outcome
	if err := json.Unmarshal(printed, &o); err != nil {
		t.Fatalf("the Node client printed %q: %v", printed, err)
	}
	return o
}

func doWithGo(t *testing.T, gateway string, c call) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	var o outcome
	var raw bytes.Buffer
	client := openai.NewClient(
		option.WithBaseURL(gateway+"/v1/"),
		option.WithAPIKey("none"),
		option.WithMaxRetries(0),
		option.WithMiddleware(func(req *http.Request, next option.MiddlewareNext) (*http.Response, error) {
			res, err := next(req)
			if err != nil {
				return res, err
			}
			o.Status = res.StatusCode
			o.Headers = map[string]string{}
			for name := range res.Header {
				o.Headers[strings.ToLower(name)] = res.Header.Get(name)
			}
			res.Body = recordedBody{io.TeeReader(res.Body, &raw), res.Body}
			return res, nil
		}),
	)
	var opts []option.RequestOption
	if c.Malformed {
		opts = append(opts, option.WithJSONSet("messages", "not a list"))
	}
	var err error
	if c.API == "chat" {
		err = chatWithGo(ctx, client, c, opts, &o)
	} else {
		err = completeWithGo(ctx, client, c, opts, &o)
	}
	if err != nil {
		o.Error = &raised{Name: fmt.Sprintf("%T", err), Message: err.Error()}
		if api, ok := errors.AsType[*openai.Error](err); ok {
			o.Error.Status = api.StatusCode
		}
	}
	o.Raw = raw.String()
	return o
}

func chatWithGo(ctx context.Context, client openai.Client, c call, opts []option.RequestOption, o *outcome) error {
	params := openai.ChatCompletionNewParams{
		Model:     c.Model,
		Messages:  []openai.ChatCompletionMessageParamUnion{openai.UserMessage(c.Prompt)},
		MaxTokens: openai.Int(int64(c.MaxTokens)),
	}
	if !c.Stream {
		answer, err := client.Chat.Completions.New(ctx, params, opts...)
		if err != nil {
			return err
		}
		o.add(answer.Choices[0].Message.Content, answer.Choices[0].FinishReason, answer.Usage)
		return nil
	}
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := client.Chat.Completions.NewStreaming(ctx, params, opts...)
	defer stream.Close()
	for stream.Next() {
		chunk := stream.Current()
		var text, finish string
		if len(chunk.Choices) > 0 {
			text, finish = chunk.Choices[0].Delta.Content, chunk.Choices[0].FinishReason
		}
		o.add(text, finish, chunk.Usage)
	}
	return stream.Err()
}

func completeWithGo(ctx context.Context, client openai.Client, c call, opts []option.RequestOption, o *outcome) error {
	params := openai.CompletionNewParams{
		Model:     openai.CompletionNewParamsModel(c.Model),
		Prompt:    openai.CompletionNewParamsPromptUnion{OfString: openai.String(c.Prompt)},
		MaxTokens: openai.Int(int64(c.MaxTokens)),
	}
	if !c.Stream {
		answer, err := client.Completions.New(ctx, params, opts...)
		if err != nil {
			return err
		}
		o.add(answer.Choices[0].Text, string(answer.Choices[0].FinishReason), answer.Usage)
		return nil
	}
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := client.Completions.NewStreaming(ctx, params, opts...)
	defer stream.Close()
	for stream.Next() {
		chunk := stream.Current()
		var text, finish string
		if len(chunk.Choices) > 0 {
			text, finish = chunk.Choices[0].Text, string(chunk.Choices[0].FinishReason)
		}
		o.add(text, finish, chunk.Usage)
	}
	return stream.Err()
}

// add takes one answer, or one chunk of a streamed one.
func (o *outcome) add(text, finish string, usage openai.CompletionUsage) {
	o.Text += text
	if text != "" {
		o.Chunks++
	}
	if finish != "" {
		o.Finish = finish
	}
	if usage.PromptTokens > 0 {
		o.PromptTokens = int(usage.PromptTokens)
		o.CompletionTokens = int(usage.CompletionTokens)
		o.CachedTokens = int(usage.PromptTokensDetails.CachedTokens)
	}
}

// recordedBody reads through a copy and closes the original.
type recordedBody struct {
	io.Reader
	io.Closer
}
