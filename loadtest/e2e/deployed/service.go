package deployed

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
)

// Service stands in for a Service, and for kube-proxy: it forwards each connection to
// a pod that is ready and not on its way out, in turn. It returns its address.
func (d *Deployment) Service(t testing.TB, selector, port string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &service{d: d, selector: selector, port: port, open: make(map[net.Conn]bool)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.serve(listener)
	}()
	t.Cleanup(func() {
		listener.Close()
		<-done
	})
	return listener.Addr().String()
}

type service struct {
	d              *Deployment
	selector, port string
	turn           int

	mu   sync.Mutex // guards open
	open map[net.Conn]bool
}

// serve forwards connections until the listener closes, and then ends them.
func (s *service) serve(listener net.Listener) {
	var forwards sync.WaitGroup
	defer forwards.Wait()
	defer s.closeAll()
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		server, err := s.dial()
		if err != nil {
			client.Close() // as from a Service without endpoints
			continue
		}
		s.mu.Lock()
		s.open[client], s.open[server] = true, true
		s.mu.Unlock()
		forwards.Go(func() { s.forward(client, server) })
		forwards.Go(func() { s.forward(server, client) })
	}
}

// dial connects to the pod whose turn it is.
func (s *service) dial() (net.Conn, error) {
	pods, err := s.d.Cluster.Pods(Namespace, s.selector)
	if err != nil {
		return nil, err
	}
	var ready []string
	for _, pod := range pods {
		if pod.Ready() && pod.Metadata.DeletionTimestamp == nil {
			ready = append(ready, pod.Status.PodIP)
		}
	}
	if len(ready) == 0 {
		return nil, errors.New("no pod is ready")
	}
	s.turn++
	return net.Dial("tcp", net.JoinHostPort(ready[s.turn%len(ready)], s.port))
}

// forward copies one direction and then ends both.
func (s *service) forward(from, to net.Conn) {
	_, _ = io.Copy(to, from) // how it ends shows at the ends
	from.Close()
	to.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, from)
	delete(s.open, to)
}

func (s *service) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.open {
		conn.Close()
	}
}
