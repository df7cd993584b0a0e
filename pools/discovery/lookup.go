package discovery

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
)

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
