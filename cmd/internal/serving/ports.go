package serving

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/tandem-gateway/tandem/gateway/live"
)

// ports are where others reach this gateway.
type ports struct {
	clients  net.Listener // nil: only the picker serves clients
	operator net.Listener
	admin    *http.Server  // on the operators' port
	page     *live.Handler // of that port; its events end before it does
	orca     *orcaServer   // nil: no proxy follows this gateway's load
	scaler   *scalerServer // nil: KEDA does not ask by gRPC
	picker   *pickerServer // nil: no proxy asks where requests go
}

// listen binds the ports for clients and for operators.
func (p *ports) listen(cfg *portsConfig, log *slog.Logger) (err error) {
	if err = p.listenForClients(cfg, log); err != nil {
		return err
	}
	if p.operator, err = net.Listen("tcp", cfg.admin); err != nil {
		return fmt.Errorf("listen for admin: %w", err)
	}
	conf, err := cfg.adminTLS.Server(tls.VerifyClientCertIfGiven, log)
	if conf != nil {
		p.operator = tls.NewListener(p.operator, conf)
	}
	return err
}

func (p *ports) listenForClients(cfg *portsConfig, log *slog.Logger) (err error) {
	if cfg.listen == "" {
		return nil
	}
	if p.clients, err = net.Listen("tcp", cfg.listen); err != nil {
		return fmt.Errorf("listen for clients: %w", err)
	}
	encrypted, err := cfg.clientTLS.Server(tls.NoClientCert, log)
	if encrypted != nil {
		encrypted.NextProtos = []string{"http/1.1"}
		p.clients = tls.NewListener(p.clients, encrypted)
	}
	return err
}

// close gives up what a node that is not run has bound.
func (p *ports) close() error {
	failed := errors.Join(p.orca.Close(), p.scaler.Close(), p.picker.Close())
	for _, port := range []net.Listener{p.clients, p.operator} {
		if port != nil {
			failed = errors.Join(failed, port.Close())
		}
	}
	return failed
}

// serve serves all of them until they are closed. What fails is sent to failed.
func (p *ports) serve(clients func(net.Listener) error, failed chan<- error) {
	if p.clients != nil {
		go func() { failed <- clients(p.clients) }()
	}
	go func() { failed <- ignoreClosed(p.admin.Serve(p.operator)) }()
	if p.orca != nil {
		go func() { failed <- p.orca.serve() }()
	}
	if p.scaler != nil {
		go func() { failed <- p.scaler.serve() }()
	}
	if p.picker != nil {
		go func() { failed <- p.picker.serve() }()
	}
}

// adminIdle is how long a connection to the admin port may stay open between two requests:
// longer than what scrapes it waits.
const adminIdle = 2 * time.Minute

// adminDrain is how long what an operator asked may take to be answered. Connections
// that are only open would be waited for without it.
const adminDrain = 500 * time.Millisecond

func (p *ports) stopAdmin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, adminDrain)
	defer cancel()
	p.page.Close()
	if p.admin.Shutdown(ctx) == nil {
		return nil
	}
	return p.admin.Close()
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
