package picker

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// pingedConn is a proxy's connection, on which further frames can be sent between those of gRPC.
type pingedConn struct {
	net.Conn
	mu sync.Mutex // of one Write, which has whole frames
}

func (c *pingedConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Conn.Write(b)
}

// ping sends an HTTP/2 ping, as Envoy's connection_keepalive does.
func (c *pingedConn) ping() error {
	_, err := c.Write([]byte{2: 8, 3: 6, 16: 1}) // 8 bytes of type PING, on no stream
	return err
}

// A proxy pings its pickers as often as it is told. A request that waits long for its choice brings no other
// frames meanwhile, and must not be lost for that.
func TestPicker_AProxyMayPing(t *testing.T) {
	f := newPicker(t, setup{decode: 1})
	var conn *pingedConn
	client, err := grpc.NewClient(f.conn.Target(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			raw, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			conn = &pingedConn{Conn: raw}
			return conn, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	f.client = extproc.NewExternalProcessorClient(client)
	p := f.open()
	p.begin(chatPath)
	tick := time.NewTicker(120 * time.Millisecond)
	defer tick.Stop()
	for range 8 {
		<-tick.C
		if err := conn.ping(); err != nil {
			t.Fatalf("the picker closes the connection of a proxy that pings: %v", err)
		}
	}
	p.body(chatOf(10, ""))
	if to := p.routing(); to.refused != nil {
		t.Errorf("refused: %s", to.refused.GetBody())
	}
}

// oneConn is a listener that has one connection.
type oneConn chan net.Conn

func (l oneConn) Accept() (net.Conn, error) {
	conn, open := <-l
	if !open {
		return nil, io.EOF
	}
	return conn, nil
}

func (l oneConn) Close() error   { return nil }
func (l oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// What the requests of a proxy hold is free soon after that has died with its machine, which ends no connection.
func TestPicker_AProxyThatAnswersNoPingIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := grpc.NewServer(serverOptions(1<<20, nil)...)
		ended := make(chan struct{})
		healthpb.RegisterHealthServer(server, watched{ended: ended})
		listener := make(oneConn, 1)
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = server.Serve(listener)
		}()
		here, there := net.Pipe()
		listener <- there
		proxy := &mute{Conn: here}
		client, err := grpc.NewClient("passthrough:proxy", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return proxy, nil }))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := healthpb.NewHealthClient(client).Watch(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		proxy.silence()
		began := time.Now()
		select {
		case <-ended:
		case <-time.After(time.Hour):
			t.Error("its request holds for an hour and longer")
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("its request holds for %v", took)
		}
		_ = client.Close()
		_ = there.Close()
		close(listener)
		server.Stop()
		<-served
	})
}

// watched is a server of which one call waits until its client has gone.
type watched struct {
	healthpb.UnimplementedHealthServer
	ended chan struct{}
}

func (w watched) Watch(_ *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	<-stream.Context().Done()
	close(w.ended)
	return nil
}

// mute is a connection whose other end is lost, once it is silent: what it sends comes to nobody.
type mute struct {
	net.Conn
	mu     sync.Mutex // guards silent
	silent bool
}

func (c *mute) silence() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent = true
}

func (c *mute) Write(b []byte) (int, error) {
	c.mu.Lock()
	silent := c.silent
	c.mu.Unlock()
	if silent {
		return len(b), nil
	}
	return c.Conn.Write(b)
}
