package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

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
	if host, port, err := net.SplitHostPort(c.Server); c.Server != "" && (err != nil || host == "" || port == "") {
		return fmt.Errorf("dns-server %q: want host:port", c.Server)
	}
	return nil
}

// DNS finds servers by names. What a name resolved to stays while it cannot be
// resolved: a server that is really gone fails its probes, and a DNS server that is
// away must not empty the fleet.
type DNS struct {
	// OnAnswered is called when each name has been looked up, or could not be, also several times. It is
	// set before Run; nil: nothing is called.
	OnAnswered func()

	cfg      DNSConfig
	resolver *net.Resolver
	found    func([]pools.Spec)
	log      *slog.Logger
	names    chan []pools.Spec // what to look up from now on

	current  []pools.Spec
	answers  chan lookup
	busy     map[string]bool              // names whose lookup is under way
	last     map[string]map[string]target // by URL, and what it stands for
	failed   map[string]string            // by URL: what was logged last
	reported []pools.Spec
}

// maxNamed bounds the servers that one name may stand for.
const maxNamed = 1024

// NewDNS returns a source of servers, found receives all of them whenever they change.
func NewDNS(cfg DNSConfig, found func([]pools.Spec), log *slog.Logger) *DNS {
	d := &DNS{
		cfg: cfg, resolver: net.DefaultResolver, found: found, log: log, names: make(chan []pools.Spec, 1),
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
func (d *DNS) SetNames(names []pools.Spec) {
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
			d.receive(l)
			d.report()
			if d.OnAnswered != nil && d.answered() {
				d.OnAnswered()
			}
			continue
		case d.current = <-d.names:
			d.forgetOthers()
			d.report()
		case <-tick.C:
		}
		for _, name := range d.current {
			if d.busy[name.URL] {
				continue
			}
			d.busy[name.URL] = true
			lookups.Go(func() { d.lookUp(ctx, name.URL) })
		}
	}
}

// lookupTime bounds the lookup of one name.
const lookupTime = 2 * time.Second

// lookUp resolves a name and sends the result.
func (d *DNS) lookUp(ctx context.Context, name string) {
	within, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	l := lookup{name: name}
	l.targets, l.err = resolve(within, d.resolver, name)
	select {
	case d.answers <- l:
	case <-ctx.Done():
	}
}

// receive keeps what a name stands for. A name, or one of its targets, that cannot be resolved
// stands for what it last did.
func (d *DNS) receive(l lookup) {
	if !slices.ContainsFunc(d.current, func(n pools.Spec) bool { return n.URL == l.name }) {
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
	d.logFailure(l.name, err)
}

// answered reports whether each name has been looked up, or could not be.
func (d *DNS) answered() bool {
	return !slices.ContainsFunc(d.current, func(n pools.Spec) bool { return d.last[n.URL] == nil && d.failed[n.URL] == "" })
}

// forgetOthers drops what is known of names that are not looked up any more.
func (d *DNS) forgetOthers() {
	gone := func(url string) bool {
		return !slices.ContainsFunc(d.current, func(n pools.Spec) bool { return n.URL == url })
	}
	maps.DeleteFunc(d.last, func(url string, _ map[string]target) bool { return gone(url) })
	maps.DeleteFunc(d.failed, func(url, _ string) bool { return gone(url) })
}

// report passes on what all names stand for, if that changed.
func (d *DNS) report() {
	var all []pools.Spec
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
	if !reflect.DeepEqual(all, d.reported) {
		d.reported = all
		d.found(all)
	}
}

// logFailure logs when a name begins or ceases to fail.
func (d *DNS) logFailure(name string, err error) {
	text := ""
	if err != nil {
		text = d.cause(err).Error()
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

// cause is why a lookup failed. The resolver names the system's DNS server, also where another one was asked.
func (d *DNS) cause(err error) error {
	cause := pools.RootCause(err)
	var answer *net.DNSError
	if d.cfg.Server != "" && errors.As(cause, &answer) {
		asked := *answer
		asked.Server = d.cfg.Server
		return &asked
	}
	return cause
}
