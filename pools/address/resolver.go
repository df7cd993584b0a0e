package address

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Resolver looks up names for any number of books.
type Resolver struct {
	names  *net.Resolver
	atOnce chan struct{} // bounds lookups
}

const (
	lookupLimit    = 2 * time.Second // for one name
	lookupsAtOnce  = 16
	maxOfOneLookup = 1024 // addresses
)

// NewResolver returns one that asks names.
func NewResolver(names *net.Resolver) *Resolver {
	return &Resolver{names: names, atOnce: make(chan struct{}, lookupsAtOnce)}
}

// lookup resolves a name, within bounds of time and of lookups at once. None: it
// cannot be resolved.
func (r *Resolver) lookup(ctx context.Context, host string) []netip.Addr {
	select {
	case r.atOnce <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	defer func() { <-r.atOnce }()
	return lookupName(ctx, r.names, host)
}

func lookupName(ctx context.Context, resolver *net.Resolver, host string) []netip.Addr {
	within, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	found, err := resolver.LookupNetIP(within, "ip", host)
	if err != nil {
		return nil // what it was before stays
	}
	return found[:min(len(found), maxOfOneLookup)]
}

// resolve returns the addresses of a host, those that it had before while it cannot be
// resolved. A host that is this machine has all of this machine's.
func (r *Resolver) resolve(ctx context.Context, host string, before []netip.Addr) []netip.Addr {
	var found []netip.Addr
	if ip, ok := literalAddress(host); ok {
		found = []netip.Addr{ip}
	} else {
		for _, ip := range r.lookup(ctx, host) {
			found = append(found, plainAddress(ip))
		}
	}
	if len(found) == 0 {
		return before
	}
	if slices.Contains(found, loopback) {
		found = append(found, machineAddresses()...)
	}
	return found
}

// machineAddresses are those of this machine's interfaces.
func machineAddresses() []netip.Addr {
	interfaces, err := net.InterfaceAddrs()
	if err != nil {
		return nil // loopback alone is known then
	}
	var all []netip.Addr
	for _, a := range interfaces {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			all = append(all, plainAddress(prefix.Addr()))
		}
	}
	return all
}

// Of is the addresses of a host, in the form in which they are compared; none where it cannot be resolved.
func Of(ctx context.Context, host string) (all []netip.Addr) {
	if ip, literal := literalAddress(host); literal {
		return []netip.Addr{ip}
	}
	for _, ip := range lookupName(ctx, net.DefaultResolver, host) {
		if ip = plainAddress(ip); !slices.Contains(all, ip) {
			all = append(all, ip)
		}
	}
	return all
}

// Describe names hosts, each with its addresses.
func Describe(ctx context.Context, hosts []string) string {
	var parts []string
	for _, host := range hosts {
		if _, literal := literalAddress(host); literal {
			parts = append(parts, host)
			continue
		}
		text := host + " (does not resolve)"
		if found := lookupName(ctx, net.DefaultResolver, host); len(found) > 0 {
			var addresses []string
			for _, ip := range found {
				addresses = append(addresses, ip.Unmap().String())
			}
			text = host + " (" + strings.Join(addresses, ", ") + ")"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}
