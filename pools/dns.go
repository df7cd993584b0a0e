package pools

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Schemes of servers that are found by name: an A or AAAA record with the URL's port,
// and an SRV record with its own ports.
const (
	dnsScheme = "dns+http"
	srvScheme = "srv+http"
)

// Named reports whether the spec is not one server but a name for any number: its URL
// is dns+http://name:port or srv+http://_service._proto.name.
func (s Spec) Named() bool {
	scheme, _, _ := strings.Cut(s.URL, "://")
	return scheme == dnsScheme || scheme == srvScheme
}

// ValidateName reports what is wrong with a name for servers, nil if nothing.
func (s Spec) ValidateName() error {
	u, err := url.Parse(s.URL)
	switch {
	case err != nil:
		return fmt.Errorf("servers %q: %w", s.URL, err)
	case u.Hostname() == "" || strings.Trim(u.Path, "/") != "":
		return fmt.Errorf("servers %q: want dns+http://name:port or srv+http://name", s.URL)
	case u.Scheme == dnsScheme && u.Port() == "":
		return fmt.Errorf("servers %q: an address record has no port: want dns+http://name:port", s.URL)
	case u.Scheme == srvScheme && u.Port() != "":
		return fmt.Errorf("servers %q: the SRV record has the ports", s.URL)
	}
	s.URL = "http://127.0.0.1:1" // the rest is that of a server
	return s.Validate()
}

// DNSConfig says how names are looked up.
type DNSConfig struct {
	Interval time.Duration // between two lookups of a name
	Server   string        // host:port of the DNS server; empty: the system's
}

// DefaultDNS sees a change in well below a second.
func DefaultDNS() DNSConfig { return DNSConfig{Interval: 300 * time.Millisecond} }

// Validate reports what is wrong with the configuration, nil if nothing.
func (c DNSConfig) Validate() error {
	if c.Interval <= 0 {
		return fmt.Errorf("dns-interval must be positive")
	}
	if c.Server != "" && !isHostPort(c.Server) {
		return fmt.Errorf("dns-server %q: want host:port", c.Server)
	}
	return nil
}

// DNS finds servers by names. What a name resolved to stays while it cannot be
// resolved: a server that is really gone fails its probes, and a DNS server that is
// away must not empty the fleet.
type DNS struct {
	cfg      DNSConfig
	resolver *net.Resolver
	found    func([]Spec)
	log      *slog.Logger
	names    chan []Spec // what to look up from now on

	last   map[string][]netip.AddrPort // by URL
	failed map[string]string           // by URL: what the log was told last
	told   []Spec
}

// maxNamed bounds the servers that one name may stand for.
const maxNamed = 1024

// NewDNS returns a source of servers, found is told all of them whenever they change.
func NewDNS(cfg DNSConfig, found func([]Spec), log *slog.Logger) *DNS {
	d := &DNS{
		cfg: cfg, resolver: net.DefaultResolver, found: found, log: log, names: make(chan []Spec, 1),
		last: make(map[string][]netip.AddrPort), failed: make(map[string]string),
	}
	if cfg.Server != "" {
		d.resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, cfg.Server)
		}}
	}
	return d
}

// SetNames replaces the names that are looked up.
func (d *DNS) SetNames(names []Spec) {
	select {
	case <-d.names: // never taken: too old
	default:
	}
	d.names <- names
}

// Run looks names up until the context ends.
func (d *DNS) Run(ctx context.Context) {
	var names []Spec
	tick := time.NewTicker(d.cfg.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case names = <-d.names:
		case <-tick.C:
		}
		d.look(ctx, names)
	}
}

// lookupTime bounds one lookup.
const lookupTime = 2 * time.Second

// look resolves all names at once and tells what they stand for, if that changed.
func (d *DNS) look(ctx context.Context, names []Spec) {
	addresses := make([][]netip.AddrPort, len(names))
	errs := make([]error, len(names))
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	var lookups sync.WaitGroup
	for i, name := range names {
		lookups.Go(func() { addresses[i], errs[i] = resolve(ctx, d.resolver, name.URL) })
	}
	lookups.Wait()
	var all []Spec
	for i, name := range names {
		d.note(name.URL, errs[i])
		if errs[i] == nil {
			d.last[name.URL] = addresses[i]
		}
		for _, address := range d.last[name.URL] {
			server := name
			server.URL = "http://" + address.String()
			if !slices.ContainsFunc(all, func(o Spec) bool { return o.ID() == server.ID() }) {
				all = append(all, server)
			}
		}
	}
	gone := func(url string) bool { return !slices.ContainsFunc(names, func(n Spec) bool { return n.URL == url }) }
	maps.DeleteFunc(d.last, func(url string, _ []netip.AddrPort) bool { return gone(url) })
	maps.DeleteFunc(d.failed, func(url, _ string) bool { return gone(url) })
	if !reflect.DeepEqual(all, d.told) {
		d.told = all
		d.found(all)
	}
}

// note logs when a name begins or ceases to fail.
func (d *DNS) note(name string, err error) {
	text := ""
	if err != nil {
		text = rootCause(err).Error()
	}
	if text == d.failed[name] {
		return
	}
	d.failed[name] = text
	if text == "" {
		d.log.Info("servers are found by name again", "name", name)
		return
	}
	d.log.Warn("name of servers not found, those that it last stood for stay", "name", name, "error", text)
}

// resolve returns the addresses of a name, sorted.
func resolve(ctx context.Context, resolver *net.Resolver, name string) (all []netip.AddrPort, err error) {
	u, err := url.Parse(name)
	if err != nil {
		return nil, err
	}
	if u.Scheme == dnsScheme {
		port, err := strconv.ParseUint(u.Port(), 10, 16)
		if err != nil {
			return nil, err
		}
		return addresses(ctx, resolver, u.Hostname(), uint16(port))
	}
	_, records, err := resolver.LookupSRV(ctx, "", "", u.Hostname())
	if err != nil {
		return nil, err
	}
	for _, r := range records[:min(len(records), maxNamed)] {
		at, err := addresses(ctx, resolver, r.Target, r.Port)
		if err != nil {
			return nil, err
		}
		all = append(all, at...)
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all), nil
}

func addresses(ctx context.Context, resolver *net.Resolver, host string, port uint16) ([]netip.AddrPort, error) {
	found, err := resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	var all []netip.AddrPort
	for _, ip := range found[:min(len(found), maxNamed)] {
		all = append(all, netip.AddrPortFrom(ip.Unmap(), port))
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all), nil
}
