package redisserver

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// slots of a Redis Cluster.
const slots = 16384

// Cluster is three masters, each with a third of the slots, and a replica of each. A
// master that answers nothing for two seconds is replaced: a busy machine is silent for less.
type Cluster struct {
	Servers [6]*Server // the first three are the masters at the start
}

// StartCluster runs one until the test ends, and waits until all know all.
func StartCluster(t *testing.T) *Cluster {
	t.Helper()
	c := &Cluster{}
	var buses [len(c.Servers)]int // ports on which they talk to each other
	for i := range c.Servers {
		buses[i] = freePort(t)
		c.Servers[i] = Start(t, "--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1", "--cluster-port", strconv.Itoa(buses[i]),
			"--cluster-node-timeout", "2000", "--dir", t.TempDir()) // what it knows of the others survives a restart
	}
	for i, s := range c.Servers {
		s.Do("CLUSTER", "SET-CONFIG-EPOCH", i+1)
		if i < 3 {
			s.Do("CLUSTER", "ADDSLOTSRANGE", i*slots/3, (i+1)*slots/3-1)
		}
		if i > 0 {
			s.Do("CLUSTER", "MEET", "127.0.0.1", c.Servers[0].port, buses[0])
		}
	}
	c.await(t, "all know all", func(s *Server) bool { return strings.Count(s.Ask("CLUSTER", "NODES"), "\n") == len(c.Servers) })
	for i, s := range c.Servers[3:] {
		s.Do("CLUSTER", "REPLICATE", c.Servers[i].Ask("CLUSTER", "MYID"))
	}
	c.await(t, "the cluster works", func(s *Server) bool {
		return strings.Contains(s.Ask("CLUSTER", "INFO"), "cluster_state:ok") &&
			strings.Count(s.Ask("CLUSTER", "NODES"), "slave ") == 3
	})
	c.await(t, "the replicas follow", func(s *Server) bool {
		info := s.Ask("INFO", "replication")
		return strings.Contains(info, "connected_slaves:1") || strings.Contains(info, "master_link_status:up")
	})
	return c
}

// await waits until something holds of all servers.
func (c *Cluster) await(t *testing.T, what string, holds func(*Server) bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for _, s := range c.Servers {
		for ; !holds(s); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("not within 30 s: %s:\n%s", what, s.Ask("CLUSTER", "NODES"))
			}
		}
	}
}

// Addrs are where all servers listen.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, s := range c.Servers {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// Master returns the server that has a key now, nil while none has.
func (c *Cluster) Master(t *testing.T, key string) *Server {
	t.Helper()
	for _, s := range c.Servers {
		// The others refer to it, or are gone.
		if s.cmd != nil && s.Client().Exists(t.Context(), key).Err() == nil {
			return s
		}
	}
	return nil
}
