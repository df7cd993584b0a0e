package e2e

import (
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/e2e/cluster"
)

// An API server with the definitions of the Gateway API and of its Inference Extension takes the
// manifests of the endpoint picker, no field of which it does not know; the InferencePool
// that is there names Tandem by the command of the page, and Tandem may read what it follows.
func TestPickerManifests(t *testing.T) {
	c := cluster.Start(t)
	for _, crd := range []string{
		"gateway-api-crds/gateway.networking.k8s.io_httproutes.yaml", "inference-crds/inference.networking.k8s.io_inferencepools.yaml",
	} {
		c.Kubectl(t, "apply", "--server-side", "-f", ".cache/e2e/"+crd)
	}
	c.Kubectl(t, "wait", "--for=condition=Established", "crd/inferencepools.inference.networking.k8s.io", "crd/httproutes.gateway.networking.k8s.io", "--timeout=30s")
	c.Kubectl(t, "create", "namespace", "llm-d")
	apply := func(how, what string) {
		c.Kubectl(t, "apply", "-n", "llm-d", "--server-side", "--force-conflicts", "--validate=strict", how, what)
	}
	apply("-k", "deploy/kustomize/picker")
	apply("-f", "deploy/gateway-api/service.yaml")
	apply("-f", "deploy/gateway-api/route.yaml")
	c.Kubectl(t, "-n", "llm-d", "patch", "inferencepool", "pool", "--type", "merge", "-p", `{"spec":{"endpointPickerRef":{"name":"another"}}}`)
	c.Kubectl(t, "-n", "llm-d", "patch", "inferencepool", "pool", "--type", "merge", "-p", `{"spec":{"endpointPickerRef":{"name":"tandem"}}}`)

	var pool struct {
		Spec struct {
			EndpointPickerRef struct {
				Name        string
				Port        struct{ Number int }
				FailureMode string
			}
		}
	}
	if err := c.Do("GET", "/apis/inference.networking.k8s.io/v1/namespaces/llm-d/inferencepools/pool", nil, &pool); err != nil {
		t.Fatal(err)
	}
	// Another installation in the cluster, of which neither takes the right to see nodes from the other.
	c.Kubectl(t, "apply", "--server-side", "-k", "deploy/kustomize")
	if !c.May(t, "tandem", "tandem", "get", "nodes") {
		t.Error("a gateway beside the picker may not get nodes")
	}
	ref := pool.Spec.EndpointPickerRef
	var service struct {
		Spec struct{ Ports []struct{ Port int } }
	}
	if err := c.Do("GET", "/api/v1/namespaces/llm-d/services/"+ref.Name, nil, &service); err != nil {
		t.Fatal(err)
	}
	named := false
	for _, port := range service.Spec.Ports {
		named = named || port.Port == ref.Port.Number
	}
	if ref.Name != "tandem" || ref.FailureMode != "FailOpen" || !named {
		t.Errorf("the pool's picker is %+v, the Service has ports %+v", ref, service.Spec.Ports)
	}
	for _, right := range []struct {
		verb, resource string
		want           bool
	}{{"watch", "pods", true}, {"list", "pods", true}, {"get", "nodes", true}, {"patch", "pods", false}, {"get", "secrets", false}} {
		if may := c.May(t, "llm-d", "tandem", right.verb, right.resource); may != right.want {
			t.Errorf("Tandem may %s %s: %v", right.verb, right.resource, may)
		}
	}
}
