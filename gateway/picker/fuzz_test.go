package picker

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-gateway/tandem/pools"
)

// played is a stream of which a test has all messages beforehand.
type played struct {
	ctx      context.Context
	messages []*extproc.ProcessingRequest
	answers  int
}

func (p *played) RecvMsg(to any) error {
	if len(p.messages) == 0 {
		return context.Canceled
	}
	data, err := newCodec().Marshal(p.messages[0])
	if err != nil {
		return err
	}
	p.messages = p.messages[1:]
	return newCodec().Unmarshal(data, to)
}

func (p *played) Send(*extproc.ProcessingResponse) error    { p.answers++; return nil }
func (p *played) Context() context.Context                  { return p.ctx }
func (p *played) SetHeader(metadata.MD) error               { return nil }
func (p *played) SendHeader(metadata.MD) error              { return nil }
func (p *played) SetTrailer(metadata.MD)                    {}
func (p *played) SendMsg(any) error                         { p.answers++; return nil }
func (p *played) Recv() (*extproc.ProcessingRequest, error) { return nil, errors.ErrUnsupported }

// Whatever messages come, in whatever order, the picker ends in order and nothing stays held: a
// proxy that is out of step costs its own request only. Each byte of steps is one message.
func FuzzProcess(f *testing.F) {
	f.Add([]byte{0, 2, 3, 5, 6, 7}, []byte(`{"model":"m","messages":[{"role":"user","content":"a"}]}`), []byte(eventOf("a")))
	f.Add([]byte{1}, []byte{}, []byte{})
	f.Add([]byte{6, 7, 0, 0, 4, 4, 8}, []byte(`{`), []byte(`{`))
	fx := newPicker(f, setup{specs: []pools.Spec{{URL: upServer(f), Role: pools.Both, Connector: "aggregated"}}})
	fx.eventually("its server is up", func() bool { return fx.fleet.Servers()[0].Health().Up })
	f.Fuzz(func(t *testing.T, steps, body, answer []byte) {
		if len(steps) > 30 {
			return
		}
		fx.t = t
		p := &played{ctx: t.Context()}
		for _, step := range steps {
			p.messages = append(p.messages, messageOf(step, body, answer))
		}
		c := &processor{gateway: fx.gateway, log: slog.New(slog.DiscardHandler)}
		_ = c.Process(p) // any error is one for the proxy
		fx.pd.Wait()
		fx.nothingHeld()
	})
}

// messageOf is one of the messages that Envoy sends.
func messageOf(step byte, body, answer []byte) *extproc.ProcessingRequest {
	head := func(end bool, pairs ...string) *extproc.HttpHeaders {
		return &extproc.HttpHeaders{Headers: headerList(pairs...), EndOfStream: end}
	}
	m := &extproc.ProcessingRequest{}
	switch step % 10 {
	case 0:
		m.Request = &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: head(false, ":method", "POST", ":path", chatPath)}
	case 1:
		m.Request = &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: head(true, ":method", "GET", ":path", "/v1/models")}
	case 2, 3:
		m.Request = &extproc.ProcessingRequest_RequestBody{RequestBody: &extproc.HttpBody{Body: body, EndOfStream: step%10 == 3}}
	case 4:
		m.Request = &extproc.ProcessingRequest_RequestTrailers{RequestTrailers: &extproc.HttpTrailers{}}
	case 5:
		m.Request = &extproc.ProcessingRequest_ResponseHeaders{ResponseHeaders: head(false, ":status", "200", "content-type", "text/event-stream")}
	case 6, 7:
		m.Request = &extproc.ProcessingRequest_ResponseBody{ResponseBody: &extproc.HttpBody{Body: answer, EndOfStream: step%10 == 7}}
	case 8:
		m.Request = &extproc.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extproc.HttpTrailers{}}
	case 9:
		_ = proto.Unmarshal(body, m) // as far as it is one
	}
	return m
}
