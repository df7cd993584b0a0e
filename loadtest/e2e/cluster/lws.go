package cluster

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// StartLWS starts the controller of LeaderWorkerSets with its webhooks, built by
// `.ci/e2e-parts keda`, and waits until sets can be made. The webhooks are those of its
// config/webhook that sets and their pods need, at an address of this machine.
func (c *Cluster) StartLWS(t testing.TB) {
	t.Helper()
	for _, kind := range []string{"leaderworkerset.x-k8s.io_leaderworkersets", "disaggregatedset.x-k8s.io_disaggregatedsets"} {
		c.Kubectl(t, "apply", "--server-side", "-f", ".cache/e2e/lws-crds/"+kind+".yaml")
	}
	certs := filepath.Join(c.dir, "lws")
	if err := os.Mkdir(certs, 0o700); err != nil {
		t.Fatal(err)
	}
	c.Authority.Issue(t, "lws/tls", "lws")
	authority, err := os.ReadFile(c.Authority.File)
	if err != nil {
		t.Fatal(err)
	}
	webhooks := process.FreeAddress(t)
	config := filepath.Join(certs, "config.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, lwsConfig, process.Port(t, webhooks), certs), 0o600); err != nil {
		t.Fatal(err)
	}
	p := process.Start(t, []string{"KUBECONFIG=" + c.AdminKubeconfig(t)}, "LeaderWorkerSet controller", ".cache/e2e/lws", "--config", config)
	c.Apply(t, fmt.Sprintf(lwsWebhooks, webhooks, base64.StdEncoding.EncodeToString(authority)))
	process.WaitFor(t, p, "the webhooks of LeaderWorkerSets", process.ReadyWithin, func() error {
		set := map[string]any{
			"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": map[string]any{"name": "probe"},
			"spec": map[string]any{"leaderWorkerTemplate": map[string]any{"workerTemplate": map[string]any{
				"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "c"}}}}}},
		}
		return c.Do("POST", "/apis/leaderworkerset.x-k8s.io/v1/namespaces/default/leaderworkersets?dryRun=All", set, nil)
	})
}

const lwsConfig = `apiVersion: config.lws.x-k8s.io/v1alpha1
kind: Configuration
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
metrics: {bindAddress: "0"}
health: {healthProbeBindAddress: "0"}
webhook: {host: 127.0.0.1, port: %s, certDir: %s}
`

const lwsWebhooks = `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: lws}
webhooks:
  - name: mleaderworkerset.kb.io
    clientConfig: {url: "https://%[1]s/mutate-leaderworkerset-x-k8s-io-v1-leaderworkerset", caBundle: %[2]s}
    rules: [{apiGroups: [leaderworkerset.x-k8s.io], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [leaderworkersets]}]
    sideEffects: None
    admissionReviewVersions: [v1]
  - name: mpod.kb.io
    clientConfig: {url: "https://%[1]s/mutate--v1-pod", caBundle: %[2]s}
    rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
    sideEffects: None
    admissionReviewVersions: [v1]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: lws}
webhooks:
  - name: vleaderworkerset.kb.io
    clientConfig: {url: "https://%[1]s/validate-leaderworkerset-x-k8s-io-v1-leaderworkerset", caBundle: %[2]s}
    rules: [{apiGroups: [leaderworkerset.x-k8s.io], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [leaderworkersets]}]
    sideEffects: None
    admissionReviewVersions: [v1]
`
