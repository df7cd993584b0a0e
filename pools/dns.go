package pools

import (
	"context"
	"errors"
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

	current []Spec
	answers chan lookup
	busy    map[string]bool              // names whose lookup is under way
	last    map[string]map[string]target // by URL, and what it stands for
	failed  map[string]string            // by URL: what the log was told last
	told    []Spec
}

// target is a host and port that a name stands for: the name itself, or one of its SRV
// records.
type target struct {
	host      string
	port      uint16
	addresses []netip.AddrPort // as they were found last
	err       error            // of this lookup
}

// lookup is what a name was found to stand for.
type lookup struct {
	name    string
	targets []target
	err     error // of the name itself: then there are no targets
}

// maxNamed bounds the servers that one name may stand for.
const maxNamed = 1024

// NewDNS returns a source of servers, found is told all of them whenever they change.
func NewDNS(cfg DNSConfig, found func([]Spec), log *slog.Logger) *DNS {
	d := &DNS{
		cfg: cfg, resolver: net.DefaultResolver, found: found, log: log, names: make(chan []Spec, 1),
		answers: make(chan lookup), busy: make(map[string]bool),
		last: make(map[string]map[string]target), failed: make(map[string]string),
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

// Run looks names up until the context ends. What a name stands for counts as soon as it is
// known: one that is slow to answer delays no other.
func (d *DNS) Run(ctx context.Context) {
	tick := time.NewTicker(d.cfg.Interval)
	defer tick.Stop()
	var lookups sync.WaitGroup
	defer lookups.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case l := <-d.answers:
			delete(d.busy, l.name)
			d.take(l)
			d.tell()
			continue
		case d.current = <-d.names:
			d.forgetOthers()
			d.tell()
		case <-tick.C:
		}
		for _, name := range d.current {
			if d.busy[name.URL] {
				continue
			}
			d.busy[name.URL] = true
			lookups.Go(func() { d.look(ctx, name.URL) })
		}
	}
}

// lookupTime bounds the lookup of one name.
const lookupTime = 2 * time.Second

// look finds what a name stands for and says so.
func (d *DNS) look(ctx context.Context, name string) {
	within, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	l := lookup{name: name}
	l.targets, l.err = resolve(within, d.resolver, name)
	select {
	case d.answers <- l:
	case <-ctx.Done():
	}
}

// take keeps what a name stands for. A name, or one of its targets, that cannot be resolved
// stands for what it last did.
func (d *DNS) take(l lookup) {
	if !slices.ContainsFunc(d.current, func(n Spec) bool { return n.URL == l.name }) {
		return // it was taken back meanwhile
	}
	err := l.err
	if l.err == nil {
		targets := make(map[string]target, len(l.targets))
		for _, t := range l.targets {
			key := net.JoinHostPort(t.host, strconv.Itoa(int(t.port)))
			if t.err != nil {
				t.addresses = d.last[l.name][key].addresses
				if err == nil {
					err = t.err
				}
			}
			targets[key] = t
		}
		d.last[l.name] = targets
	}
	d.note(l.name, err)
}

// forgetOthers drops what is known of names that are not looked up any more.
func (d *DNS) forgetOthers() {
	gone := func(url string) bool {
		return !slices.ContainsFunc(d.current, func(n Spec) bool { return n.URL == url })
	}
	maps.DeleteFunc(d.last, func(url string, _ map[string]target) bool { return gone(url) })
	maps.DeleteFunc(d.failed, func(url, _ string) bool { return gone(url) })
}

// tell says what all names stand for, if that changed.
func (d *DNS) tell() {
	var all []Spec
	seen := make(map[string]bool)
	for _, name := range d.current {
		var found []netip.AddrPort
		for _, t := range d.last[name.URL] {
			found = append(found, t.addresses...)
		}
		slices.SortFunc(found, netip.AddrPort.Compare)
		for _, address := range found[:min(len(found), maxNamed)] {
			server := name
			server.URL = "http://" + address.String()
			if id := server.ID(); !seen[id] {
				seen[id] = true
				all = append(all, server)
			}
		}
	}
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
	d.log.Warn("name of servers not found, or a part of it: those that it last stood for stay", "name", name, "error", text)
}

// resolve returns the targets of a name, each with its addresses or why it has none.
func resolve(ctx context.Context, resolver *net.Resolver, name string) ([]target, error) {
	u, err := url.Parse(name)
	if err != nil {
		return nil, err
	}
	if u.Scheme == dnsScheme {
		port, err := strconv.ParseUint(u.Port(), 10, 16)
		if err != nil {
			return nil, err
		}
		t := target{host: u.Hostname(), port: uint16(port)}
		t.resolve(ctx, resolver)
		return []target{t}, t.err
	}
	_, records, err := resolver.LookupSRV(ctx, "", "", u.Hostname())
	if err != nil {
		return nil, err
	}
	records = records[:min(len(records), maxNamed)]
	targets := make([]target, len(records))
	limit := make(chan struct{}, parallelTargets)
	var lookups sync.WaitGroup
	for i, r := range records {
		targets[i] = target{host: r.Target, port: r.Port}
		limit <- struct{}{}
		lookups.Go(func() {
			defer func() { <-limit }()
			targets[i].resolve(ctx, resolver)
		})
	}
	lookups.Wait()
	return targets, nil
}

// parallelTargets is how many targets of a name are looked up at once.
const parallelTargets = 16

// resolve looks up the addresses of a target.
func (t *target) resolve(ctx context.Context, resolver *net.Resolver) {
	found, err := resolver.LookupNetIP(ctx, "ip", t.host)
	if err != nil {
		t.err = fmt.Errorf("%s: %w", t.host, err)
		return
	}
	for _, ip := range found[:min(len(found), maxNamed)] {
		t.addresses = append(t.addresses, netip.AddrPortFrom(ip.Unmap(), t.port))
	}
}

func rootCause(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}
