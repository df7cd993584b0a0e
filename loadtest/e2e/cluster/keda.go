package cluster

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// StartKEDA starts KEDA's operator and metrics adapter, built by `.ci/e2e-parts keda`,
// and waits until HPA can ask for external metrics. There is no Service network here:
// the adapter's Service is another name of this machine.
func (c *Cluster) StartKEDA(t testing.TB) {
	t.Helper()
	c.DefineKEDA(t)
	certs := filepath.Join(c.dir, "keda")
	if err := os.Mkdir(certs, 0o700); err != nil {
		t.Fatal(err)
	}
	cert, key := c.Authority.Issue(t, "keda/tls", "keda", "keda-metrics-apiserver.keda.svc")
	authority, err := os.ReadFile(c.Authority.File)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(certs, "ca.crt"), authority, 0o600); err != nil {
		t.Fatal(err)
	}
	adapter, metrics := process.FreeAddress(t), process.FreeAddress(t)
	port := process.Port(t, adapter)
	c.Apply(t, fmt.Sprintf(adapterService, port, base64.StdEncoding.EncodeToString(authority)))

	kubeconfig := c.AdminKubeconfig(t)
	env := []string{"KUBECONFIG=" + kubeconfig, "POD_NAMESPACE=keda", "KEDA_CLUSTER_OBJECT_NAMESPACE=keda", "WATCH_NAMESPACE="}
	process.Start(t, env, "KEDA operator", ".cache/e2e/keda-operator",
		"--cert-dir", certs, "--metrics-service-bind-address", metrics, "--metrics-bind-address", "0",
		"--health-probe-bind-address", "0", "--enable-webhook-patching=false", "--enable-apiservice-patching=false")
	p := process.Start(t, env, "KEDA metrics adapter", ".cache/e2e/keda-adapter",
		"--bind-address", "127.0.0.1", "--secure-port", port, "--port", "0",
		"--cert-dir", certs, "--tls-cert-file", cert, "--tls-private-key-file", key,
		"--metrics-service-address", "localhost:"+process.Port(t, metrics),
		"--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig, "--lister-kubeconfig", kubeconfig)
	process.WaitFor(t, p, "KEDA's metrics", process.ReadyWithin, func() error {
		return c.Do("GET", "/apis/external.metrics.k8s.io/v1beta1", nil, nil)
	})
}

// DefineKEDA makes KEDA's kinds known to the API server.
func (c *Cluster) DefineKEDA(t testing.TB) {
	t.Helper()
	for _, kind := range []string{"scaledobjects", "scaledjobs", "triggerauthentications", "clustertriggerauthentications"} {
		c.Kubectl(t, "apply", "--server-side", "-f", ".cache/e2e/keda-crds/keda.sh_"+kind+".yaml")
	}
	for _, kind := range []string{"cloudeventsources", "clustercloudeventsources"} {
		c.Kubectl(t, "apply", "--server-side", "-f", ".cache/e2e/keda-crds/eventing.keda.sh_"+kind+".yaml")
	}
}

const adapterService = `apiVersion: v1
kind: Namespace
metadata: {name: keda}
---
apiVersion: v1
kind: Service
metadata: {name: keda-metrics-apiserver, namespace: keda}
spec:
  type: ExternalName
  externalName: localhost
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.external.metrics.k8s.io}
spec:
  group: external.metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  service: {name: keda-metrics-apiserver, namespace: keda, port: %s}
  caBundle: %s
`
