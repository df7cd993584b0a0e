package address

import (
	"net/netip"
	"strings"
)

// maxHostName is the longest host name in bytes.
const maxHostName = 253

// loopback stands for all addresses of the machine itself, which mean a different machine
// to each reader.
var loopback = netip.MustParseAddr("127.0.0.1")

// literalAddress returns the address that a host is, false if it is a name. localhost is
// one, on every machine.
func literalAddress(host string) (netip.Addr, bool) {
	if name := strings.TrimSuffix(strings.ToLower(host), "."); name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return loopback, true
	}
	ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	if err != nil {
		return netip.Addr{}, false
	}
	return plainAddress(ip), true
}

// plainAddress is the one form in which addresses are compared. What is not specified is
// the machine itself to clients that connect to it.
func plainAddress(ip netip.Addr) netip.Addr {
	ip = ip.Unmap().WithZone("")
	if ip.IsLoopback() || ip.IsUnspecified() {
		return loopback
	}
	return ip
}

// sameName reports whether two hosts are the same by their spelling.
func sameName(a, b string) bool {
	return strings.EqualFold(strings.TrimSuffix(a, "."), strings.TrimSuffix(b, "."))
}
