package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// spanCollector receives spans as an OTLP collector does, and keeps them: the demo sends three
// requests.
type spanCollector struct {
	url    string
	server *http.Server
	served sync.WaitGroup

	mu    sync.Mutex // guards the rest
	spans []*tracev1.Span
	news  chan struct{} // closed with the next spans
}

func startSpanCollector() (*spanCollector, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for traces: %w", err)
	}
	c := &spanCollector{url: "http://" + l.Addr().String(), news: make(chan struct{})}
	c.server = &http.Server{Handler: http.HandlerFunc(c.receive), ReadHeaderTimeout: time.Minute}
	c.served.Go(func() { _ = c.server.Serve(l) }) // it ends with close
	return c, nil
}

func (c *spanCollector) close() {
	_ = c.server.Close() // the gateway, which sends, has stopped
	c.served.Wait()
}

// maxExport bounds what is read of one export, in bytes.
const maxExport = 16 << 20

func (c *spanCollector) receive(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxExport))
	var export collectortrace.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &export)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range export.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			c.spans = append(c.spans, scope.Spans...)
		}
	}
	close(c.news)
	c.news = make(chan struct{})
}

// trace waits for the span of a request, which ends last, and returns all of its trace in the order of
// their beginning, that of the request first.
func (c *spanCollector) trace(ctx context.Context, requestID string) ([]*tracev1.Span, error) {
	for {
		c.mu.Lock()
		spans, news := slices.Clone(c.spans), c.news
		c.mu.Unlock()
		root := slices.IndexFunc(spans, func(s *tracev1.Span) bool { return attributeOf(s, "tandem.request_id") == requestID })
		if root >= 0 {
			id := spans[root].TraceId
			spans = slices.DeleteFunc(spans, func(s *tracev1.Span) bool { return !bytes.Equal(s.TraceId, id) })
			slices.SortStableFunc(spans, func(a, b *tracev1.Span) int { return cmp.Compare(a.StartTimeUnixNano, b.StartTimeUnixNano) })
			return spans, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil, fmt.Errorf("the trace of %s: %w", requestID, context.Cause(ctx))
		}
	}
}

func attributeOf(s *tracev1.Span, key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return valueText(a.Value)
		}
	}
	return ""
}

// valueText is an attribute's value; numbers are cut to three digits.
func valueText(v *commonv1.AnyValue) string {
	switch v := v.Value.(type) {
	case *commonv1.AnyValue_IntValue:
		return strconv.FormatInt(v.IntValue, 10)
	case *commonv1.AnyValue_DoubleValue:
		return strconv.FormatFloat(v.DoubleValue, 'g', 3, 64)
	case *commonv1.AnyValue_BoolValue:
		return strconv.FormatBool(v.BoolValue)
	}
	return v.GetStringValue()
}

// treeWidth is the width of a printed trace, in characters.
const treeWidth = 110

// printTrace prints a trace as a tree: of each span when it began within the request, how long it
// took, its attributes, and which span it is linked to.
func printTrace(out io.Writer, spans []*tracev1.Span) {
	root := spans[0]
	names := make(map[string]string)
	for i, s := range spans {
		names[string(s.SpanId)] = fmt.Sprintf("%d", i)
	}
	for i, s := range spans {
		begun, took := time.Duration(s.StartTimeUnixNano-root.StartTimeUnixNano), time.Duration(s.EndTimeUnixNano-s.StartTimeUnixNano)
		branch, indent := "├─ ", "│  "
		switch i {
		case 0:
			branch, indent = "", "│  "
		case len(spans) - 1:
			branch, indent = "└─ ", "   "
		}
		_, _ = fmt.Fprintf(out, "%s[%d] %s  at %s, took %s%s\n", branch, i, s.Name, milliseconds(begun), milliseconds(took), failureText(s))
		for _, line := range wrapped(detailsOf(s, root, names), treeWidth) {
			_, _ = fmt.Fprintf(out, "%s     %s\n", indent, line)
		}
	}
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.1f ms", d.Seconds()*1000) }

func failureText(s *tracev1.Span) string {
	if s.Status.GetCode() != tracev1.Status_STATUS_CODE_ERROR {
		return ""
	}
	return ", ERROR " + s.Status.Message
}

// detailsOf are a span's attributes, events and links.
func detailsOf(s, root *tracev1.Span, names map[string]string) (details []string) {
	for _, a := range s.Attributes {
		details = append(details, a.Key+"="+valueText(a.Value))
	}
	for _, e := range s.Events {
		details = append(details, fmt.Sprintf("event %q at %s", e.Name, milliseconds(time.Duration(e.TimeUnixNano-root.StartTimeUnixNano))))
	}
	for _, l := range s.Links {
		details = append(details, "link to ["+names[string(l.SpanId)]+"]")
	}
	return details
}

// wrapped joins words to lines of about a width.
func wrapped(words []string, width int) (lines []string) {
	for _, word := range words {
		if n := len(lines); n > 0 && len(lines[n-1])+len(word) < width {
			lines[n-1] += "  " + word
			continue
		}
		lines = append(lines, word)
	}
	return lines
}

// showTrace asks the long question once more, while the prefill server that had it refuses once and
// the decode server that had it dies within the answer, and prints the trace.
func (d *demo) showTrace(ctx context.Context, base, question string, before reply) error {
	for server, fault := range map[string]engine.Fault{
		before.header.Get("X-Tandem-Prefill"): {Kind: engine.FaultStatus, Status: http.StatusBadGateway, Count: 1},
		before.header.Get("X-Tandem-Decode"):  {Kind: engine.FaultDieAfterTokens, Tokens: 20, Count: 1},
	} {
		if err := setFault(ctx, server, fault); err != nil {
			return err
		}
	}
	answer, err := ask(ctx, base, demoModel, question, demoOutputTokens)
	if err != nil {
		return fmt.Errorf("the demo's request to servers that fail: %w", err)
	}
	d.print("\nits trace, where prefill fails once and decode dies within the answer (%s; the gateway sends spans every 5 s):", answer.header.Get("X-Request-Id"))
	spans, err := d.collector.trace(ctx, answer.header.Get("X-Request-Id"))
	if err != nil {
		return err
	}
	printTrace(d.out, spans)
	return nil
}

// setFault makes a simulated engine fail.
func setFault(ctx context.Context, server string, fault engine.Fault) error {
	body, err := json.Marshal(fault)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+server+"/sim/faults", bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("make %s fail: %w", server, err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("make %s fail: %s", server, strings.ToLower(resp.Status))
	}
	return nil
}
