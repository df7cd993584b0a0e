package picker

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/tandem-gateway/tandem/gateway"
)

// The messages of some requests are those that people have read in testdata/conversations.txt. Run
// with UPDATE=1 to write it anew.
func TestPicker_Conversations(t *testing.T) {
	var got strings.Builder
	for _, c := range []struct {
		name, method, path string
		body               []byte
		more               []string
		setup              setup
	}{
		{name: "a pair", path: chatPath, body: chatOf(8_000, ""), setup: setup{prefill: 1, decode: 2, config: Config{Fallbacks: 2}}},
		{name: "decode alone, streamed", path: chatPath, body: chatOf(10, `,"stream":true`), setup: setup{decode: 1}},
		{name: "a body of 120 KB", path: chatPath, body: chatOf(120_000, ""), setup: setup{decode: 1}},
		{name: "no body", method: "GET", path: "/v1/models", setup: setup{decode: 1}},
		{name: "malformed JSON", path: chatPath, body: []byte(`{"model":`), setup: setup{decode: 1}},
		{name: "malformed JSON, a message", path: "/v1/messages", body: []byte(`{"model":`), setup: setup{decode: 1}},
		{name: "shed", path: chatPath, body: chatOf(200_000, ""), setup: setup{decode: 1, gateway: func(c *gateway.Config) { c.MaxArriving = 70_000 }}},
		{name: "no server", path: chatPath, body: chatOf(10, ""), setup: setup{specs: nil}},
	} {
		f := newPicker(t, c.setup)
		p := f.open()
		if c.method == "GET" {
			p.send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{
				Headers: headerList(":method", "GET", ":path", c.path), EndOfStream: true,
			}}})
		} else {
			p.request(c.path, c.body, append([]string{"x-request-id", "mine"}, c.more...)...)
		}
		fmt.Fprintf(&got, "%s: %d bytes\n", c.name, len(c.body))
		for done := false; !done; {
			var line string
			line, done = describe(p.receive(), f)
			done = done || c.method == "GET"
			got.WriteString(line)
		}
		got.WriteString("\n")
		p.cancel()
		f.nothingHeld()
	}
	file := filepath.Join("testdata", "conversations.txt")
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("got:\n%s", got.String())
	}
}

// describe is a message as people read it, and whether it is the last for the request. Addresses
// are those of the engines by their number.
func describe(m *extproc.ProcessingResponse, f *pickerFixture) (text string, last bool) {
	name := func(text string) string {
		for i, e := range f.prefill {
			text = strings.ReplaceAll(text, hostOf(e.URL()), "prefill"+strconv.Itoa(i))
		}
		for range f.decode { // either may be first
			for _, e := range f.decode {
				text = strings.ReplaceAll(text, hostOf(e.URL()), "decode")
			}
		}
		return text
	}
	var b strings.Builder
	switch {
	case m.GetRequestHeaders() != nil:
		common := m.GetRequestHeaders().GetResponse()
		fmt.Fprintf(&b, "  headers, clear route cache %v\n", common.GetClearRouteCache())
		for _, h := range common.GetHeaderMutation().GetSetHeaders() {
			fmt.Fprintf(&b, "    set %s: %s (%s)\n", h.GetHeader().GetKey(), name(string(h.GetHeader().GetRawValue())), h.GetAppendAction())
		}
		fmt.Fprintf(&b, "    remove %s\n", strings.Join(common.GetHeaderMutation().GetRemoveHeaders(), " "))
		for space, value := range m.GetDynamicMetadata().GetFields() {
			for key, value := range value.GetStructValue().GetFields() {
				fmt.Fprintf(&b, "    metadata %s %s: %s\n", space, key, name(value.GetStringValue()))
			}
		}
	case m.GetRequestBody() != nil:
		piece := m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		fmt.Fprintf(&b, "  body, %d bytes, end of stream %v\n", len(piece.GetBody()), piece.GetEndOfStream())
		last = piece.GetEndOfStream()
	case m.GetImmediateResponse() != nil:
		r := m.GetImmediateResponse()
		fmt.Fprintf(&b, "  immediate response %d\n", r.GetStatus().GetCode())
		for _, h := range r.GetHeaders().GetSetHeaders() {
			value := string(h.GetHeader().GetRawValue())
			if strings.HasPrefix(h.GetHeader().GetKey(), "retry-after") {
				value = "..."
			}
			fmt.Fprintf(&b, "    set %s: %s\n", h.GetHeader().GetKey(), value)
		}
		fmt.Fprintf(&b, "    %s\n", r.GetBody())
		last = true
	}
	return b.String(), last
}

func hostOf(url string) string {
	_, address, _ := strings.Cut(url, "//")
	if _, _, err := net.SplitHostPort(address); err != nil {
		return url
	}
	return address
}
