package process

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are below those that the system gives to outgoing connections, one of which could take a port
// before it is listened on.
const firstPort, ports = 10000, 22000

// given remembers the ports that FreeAddresses gave: whoever got one may listen on it seconds later.
var given = struct {
	sync.Mutex
	ports map[int]bool
}{ports: make(map[int]bool)}

// FreeAddresses returns loopback addresses on whose ports no process listens now, all different, and none of
// which this process was given before, of the last ten thousand.
func FreeAddresses(n int) (addrs []string, err error) {
	given.Lock()
	defer given.Unlock()
	if len(given.ports)+n > ports/2 {
		clear(given.ports)
	}
	for tries := 0; len(addrs) < n; tries++ {
		port := firstPort + rand.IntN(ports)
		if given.ports[port] {
			continue
		}
		ln, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port))) // engines publish on all
		if err != nil && tries < 100*(n+1) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer func() { _ = ln.Close() }() // once all are found
		given.ports[port] = true
		addrs = append(addrs, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	}
	return addrs, nil
}
