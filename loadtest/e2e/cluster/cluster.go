// Package cluster is a real Kubernetes control plane on this machine, for one test:
// etcd, kube-apiserver and kube-controller-manager, built by .ci/e2e-parts. There
// are no nodes: a Kubelet stands in for them and runs pods as processes.
package cluster

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// adminToken is the bearer token of system:masters.
const adminToken = "test-admin"

// Cluster is a control plane that runs until its test ends.
type Cluster struct {
	URL       string // of the API server
	Authority *Authority

	dir  string
	etcd string // client address
	api  *process.Process
}

// Start starts a control plane and waits until it serves.
func Start(t testing.TB) *Cluster {
	t.Helper()
	dir := t.TempDir()
	c := &Cluster{
		URL:       "https://" + process.FreeAddress(t),
		Authority: newAuthority(t, dir),
		dir:       dir,
		etcd:      process.FreeAddress(t),
	}
	peers := "http://" + process.FreeAddress(t)
	etcd := process.Start(t, nil, "etcd", ".cache/e2e/etcd",
		"--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--log-level", "error",
		"--listen-client-urls", "http://"+c.etcd, "--advertise-client-urls", "http://"+c.etcd,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers)
	process.WaitFor(t, etcd, "etcd", process.ReadyWithin, process.Answers("http://"+c.etcd+"/health"))

	tokens := fmt.Sprintf("%s,admin,admin,system:masters\n", adminToken)
	if err := os.WriteFile(filepath.Join(dir, "tokens.csv"), []byte(tokens), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Authority.Issue(t, "apiserver", "kube-apiserver", "kubernetes.default.svc")
	c.Authority.Issue(t, "aggregator", "aggregator")
	c.Authority.Issue(t, "accounts", "accounts")
	c.StartAPIServer(t)
	c.startControllers(t)
	return c
}

// StartAPIServer starts the API server, again after StopAPIServer.
func (c *Cluster) StartAPIServer(t testing.TB) {
	t.Helper()
	host, port, err := net.SplitHostPort(c.URL[len("https://"):])
	if err != nil {
		t.Fatal(err)
	}
	in := func(file string) string { return filepath.Join(c.dir, file) }
	c.api = process.Start(t, nil, "kube-apiserver", ".cache/e2e/kube-apiserver",
		"--bind-address", host, "--advertise-address", host, "--secure-port", port,
		"--etcd-servers", "http://"+c.etcd,
		"--tls-cert-file", in("apiserver.crt"), "--tls-private-key-file", in("apiserver.key"),
		"--authorization-mode", "RBAC", "--token-auth-file", in("tokens.csv"),
		"--service-account-issuer", "https://kubernetes.default.svc",
		"--service-account-signing-key-file", in("accounts.key"), "--service-account-key-file", in("accounts.crt"),
		// Aggregated APIs, such as KEDA's metrics, know the API server by its certificate.
		"--requestheader-client-ca-file", c.Authority.File, "--requestheader-allowed-names", "aggregator",
		"--requestheader-extra-headers-prefix", "X-Remote-Extra-", "--requestheader-group-headers", "X-Remote-Group",
		"--requestheader-username-headers", "X-Remote-User",
		"--proxy-client-cert-file", in("aggregator.crt"), "--proxy-client-key-file", in("aggregator.key"),
		"--service-cluster-ip-range", "10.96.0.0/16", "--endpoint-reconciler-type", "none")
	t.Cleanup(func() { c.api.Kill(t) }) // it would wait for the clients that watch it
	process.WaitFor(t, c.api, "the API server", process.ReadyWithin, func() error {
		return c.Do("GET", "/readyz", nil, nil)
	})
}

// StopAPIServer takes the API server away.
func (c *Cluster) StopAPIServer(t testing.TB) {
	t.Helper()
	c.api.Kill(t)
}

// controllers are those that pods and their scaling need. EndpointSlices are not made:
// they may not name addresses of this machine's loopback, which pods have here.
const controllers = "deployment-controller,replicaset-controller,statefulset-controller," +
	"serviceaccount-controller,horizontal-pod-autoscaler-controller,disruption-controller,garbage-collector-controller"

func (c *Cluster) startControllers(t testing.TB) {
	t.Helper()
	manager := process.Start(t, nil, "kube-controller-manager", ".cache/e2e/kube-controller-manager",
		"--kubeconfig", c.AdminKubeconfig(t), "--controllers", controllers,
		"--leader-elect=false", "--secure-port", "0",
		"--service-account-private-key-file", filepath.Join(c.dir, "accounts.key"), "--root-ca-file", c.Authority.File,
		"--horizontal-pod-autoscaler-sync-period", "1s", "--concurrent-gc-syncs", "2")
	// Pods are not admitted before their namespace has its service account.
	process.WaitFor(t, manager, "the controllers", process.ReadyWithin, func() error {
		return c.Do("GET", "/api/v1/namespaces/default/serviceaccounts/default", nil, nil)
	})
}
