package chaos

import (
	"context"
	"fmt"
	"strings"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// link is a connection that can fail, by way of a proxy.
type link struct {
	proxy   *toxiproxy.Proxy
	refuses bool
}

// newLink opens a proxy on a port of its own in front of an address.
func newLink(name, to string) (*link, error) {
	api := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	proxy := toxiproxy.NewProxy(api, name, "127.0.0.1:0", to)
	if err := proxy.Start(); err != nil {
		return nil, fmt.Errorf("proxy for %s: %w", name, err)
	}
	return &link{proxy: proxy}, nil
}

// addr is where the connection is entered.
func (l *link) addr() string { return l.proxy.Listen }

func (l *link) addToxic(t Toxin) error {
	if t.json == "" {
		l.refuses = true
		l.proxy.Stop()
		return nil
	}
	if _, err := l.proxy.Toxics.AddToxicJson(strings.NewReader(t.json)); err != nil {
		return fmt.Errorf("toxic %s: %w", t.name, err)
	}
	return nil
}

func (l *link) removeToxics(ctx context.Context) error {
	l.proxy.Toxics.ResetToxics(ctx)
	if !l.refuses {
		return nil
	}
	l.refuses = false
	return l.proxy.Start()
}

func (l *link) close() {
	if !l.refuses {
		l.proxy.Stop()
	}
}
