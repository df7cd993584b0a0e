package serving

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"

	"github.com/tandem-gateway/tandem/pools/address"
)

// oneEngine is the warning of two servers at one address.
const oneEngine = "what it can take is counted twice, if they are one engine and no proxy there tells them apart by name: name it once (with the role both, if it is to prefill and to decode)"

// placesOf is where a URL leads to.
func placesOf(ctx context.Context, server string) (places []netip.AddrPort) {
	u, err := url.Parse(server)
	if err != nil {
		return nil // no such server was configured
	}
	port := uint64(80)
	if u.Scheme == "https" {
		port = 443
	}
	if u.Port() != "" {
		if port, err = strconv.ParseUint(u.Port(), 10, 16); err != nil {
			return nil
		}
	}
	for _, ip := range address.Of(ctx, u.Hostname()) {
		places = append(places, netip.AddrPortFrom(ip, uint16(port)))
	}
	return places
}

// sameEngines names the servers that are at the address of another under another name. A Service has an address of its
// own, so that an engine behind two of them is not found.
func sameEngines(answers []checkedServer) (warnings []string) {
	at := make(map[netip.AddrPort][]*checkedServer)
	for i := range answers {
		a, warned := &answers[i], false // once of each
		for _, place := range a.places {
			for _, other := range at[place] {
				if !warned && overlaps(a.spec.Rank, other.spec.Rank) {
					warned = true
					warnings = append(warnings, fmt.Sprintf("servers %s and %s are both at %s: %s", other.spec.ID(), a.spec.ID(), place, oneEngine))
				}
			}
			at[place] = append(at[place], a)
		}
	}
	return warnings
}

// overlaps reports whether two servers at one address have a rank in common; nil is all.
func overlaps(a, b *int) bool { return a == nil || b == nil || *a == *b }
