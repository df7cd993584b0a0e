package serving

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/gateway/picker"
)

// pickerServer answers proxies that ask where requests go.
type pickerServer struct {
	listener net.Listener
	*picker.Server
}

// newPicker binds the address; nil without one. standsBy says that requests should go to another.
func newPicker(cfg *portsConfig, engineKey func() string, s *gateway.Server, standsBy func() bool, log *slog.Logger) (*pickerServer, error) {
	if cfg.picker == "" {
		return nil, nil
	}
	encrypted, err := pickerTLS(cfg, log)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", cfg.picker)
	if err != nil {
		return nil, fmt.Errorf("listen for the picker: %w", err)
	}
	picking := cfg.picking
	picking.EngineKey = engineKey
	return &pickerServer{listener, picker.New(picking, s, func() bool { return s.Ready() && !standsBy() }, encrypted, log)}, nil
}

// pickerTLS is nil for plain text. Without a certificate it signs its own, as llm-d's picker does
// (llm-d-router internal/tls/tls.go): gateways encrypt, and do not ask who it is.
func pickerTLS(cfg *portsConfig, log *slog.Logger) (*tls.Config, error) {
	switch {
	case cfg.pickerPlain:
		return nil, nil
	case cfg.pickerTLS.Cert != "":
		return cfg.pickerTLS.Server(tls.NoClientCert, log)
	}
	return cfg.pickerTLS.SelfSigned()
}

func (p *pickerServer) serve() error { return p.Serve(p.listener) }

func (p *pickerServer) drain() {
	if p != nil {
		p.Drain()
	}
}

// shutdown waits for the requests under way in a goroutine of its own, beside those of the port
// for clients. The channel is closed when they have ended.
func (p *pickerServer) shutdown(ctx context.Context) <-chan struct{} {
	ended := make(chan struct{})
	if p == nil {
		close(ended)
		return ended
	}
	go func() {
		defer close(ended)
		p.Shutdown(ctx)
	}()
	return ended
}

// addressOf is what logs say of a port that may be closed.
func addressOf(addr net.Addr) string {
	if addr == nil {
		return ""
	}
	return addr.String()
}

// Close gives up a port that is not served. Closing none is no error.
func (p *pickerServer) Close() error {
	if p == nil {
		return nil
	}
	if err := p.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
