package redisserver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// MasterName is what the sentinels call the master.
const MasterName = "tandem"

// Trio is a master, two replicas of it, and three sentinels that agree on which of them
// is the master. A master that answers nothing for two seconds is replaced: a busy machine
// is silent for less.
type Trio struct {
	Servers   [3]*Server // the first is the master at the start
	sentinels [3]*Server
}

// StartTrio runs them until the test ends, and waits until the sentinels know all.
func StartTrio(t *testing.T) *Trio {
	t.Helper()
	trio := &Trio{}
	for i := range trio.Servers {
		var args []string
		if i > 0 {
			args = []string{"--replicaof", "127.0.0.1 " + strconv.Itoa(trio.Servers[0].port)}
		}
		trio.Servers[i] = Start(t, args...)
	}
	for i := range trio.sentinels {
		trio.sentinels[i] = startSentinel(t, trio.Servers[0].port)
	}
	for deadline := time.Now().Add(20 * time.Second); !trio.complete(t); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the sentinels do not find each other and the replicas")
		}
	}
	return trio
}

func startSentinel(t *testing.T, master int) *Server {
	t.Helper()
	s := &Server{t: t, port: freePort(t)}
	file := filepath.Join(t.TempDir(), "sentinel.conf")
	text := fmt.Sprintf("port %d\nbind 127.0.0.1\nsentinel monitor %s 127.0.0.1 %d 2\nsentinel down-after-milliseconds %s 2000\nsentinel failover-timeout %s 3000\n",
		s.port, MasterName, master, MasterName, MasterName)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	if err := s.run(file, "--sentinel"); err != nil {
		t.Fatal(err)
	}
	return s
}

// complete asks a sentinel whether it knows two replicas and two other sentinels.
func (trio *Trio) complete(t *testing.T) bool {
	c := redis.NewSentinelClient(&redis.Options{Addr: trio.sentinels[0].Addr(), MaxRetries: -1})
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	state, err := c.Master(ctx, MasterName).Result()
	return err == nil && state["num-slaves"] == "2" && state["num-other-sentinels"] == "2"
}

// Addrs are the sentinels'.
func (trio *Trio) Addrs() []string {
	var addrs []string
	for _, s := range trio.sentinels {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// Master returns the server that is the master now, nil while the sentinel does not say.
func (trio *Trio) Master(t *testing.T) *Server {
	t.Helper()
	c := redis.NewSentinelClient(&redis.Options{Addr: trio.sentinels[0].Addr(), MaxRetries: -1, ReadTimeout: clientTime})
	defer func() { _ = c.Close() }()
	addr, err := c.GetMasterAddrByName(t.Context(), MasterName).Result()
	if err != nil {
		return nil
	}
	for _, s := range trio.Servers {
		if strconv.Itoa(s.port) == addr[1] {
			return s
		}
	}
	t.Fatalf("the master is %v, which is none of the trio", addr)
	return nil
}
