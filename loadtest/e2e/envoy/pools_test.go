package envoy

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/e2e/cluster"
	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// podEngine is a simulated engine in the place of a pod.
type podEngine struct {
	p   *process.Process
	url string
}

func (e *podEngine) Ready() error { return process.Answers(e.url + "/health")() }
func (e *podEngine) Stop() error  { return e.p.Stop() }

// runEngine starts the engine of a pod, as its labels say.
func runEngine(t *testing.T) func(cluster.Pod) (cluster.Running, error) {
	bin := filepath.Join(process.Root(t), "bin/tandem-lab")
	return func(pod cluster.Pod) (cluster.Running, error) {
		listen, role := pod.Status.PodIP+":8000", pod.Metadata.Labels["llm-d.ai/role"]
		if role == "" {
			role = "both"
		}
		p, err := process.Launch(nil, pod.Metadata.Name, bin, "engine", "--listen", listen, "--role", role, "--model", pod.Metadata.Labels["app"],
			"--connector", "llmd-sidecar", "--min-output-tokens", "8", "--mean-output-tokens", "20")
		return &podEngine{p, "http://" + listen}, err
	}
}

// The pods of two InferencePools, one of pairs and one of servers of both roles, serve their models
// through Envoy; a pod that is added to a pool serves, and a pool that is deleted serves no more.
func TestInferencePools_TwoOfThemServe(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a control plane; make e2e-envoy runs it")
	}
	c := cluster.Start(t)
	c.Kubectl(t, "apply", "--server-side", "-f", ".cache/e2e/inference-crds/inference.networking.k8s.io_inferencepools.yaml")
	c.Kubectl(t, "wait", "--for=condition=Established", "crd/inferencepools.inference.networking.k8s.io", "--timeout=30s")
	c.Kubectl(t, "create", "namespace", "models")
	c.RunPods(t, runEngine(t), cluster.Node{Name: "node-1"})
	pod := func(name, app, role string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: models, labels: {app: %s%s}}\nspec:\n  automountServiceAccountToken: false\n  containers: [{name: vllm, image: vllm}]\n---\n", name, app, role)
	}
	pool := func(app string) string {
		return fmt.Sprintf("apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: %s, namespace: models}\nspec:\n"+
			"  selector: {matchLabels: {app: %s}}\n  targetPorts: [{number: 8000}]\n  endpointPickerRef: {name: tandem, port: {number: 9002}}\n---\n", app, app)
	}
	c.Kubectl(t, "-n", "models", "wait", "--for=create", "serviceaccount/default", "--timeout=30s") // pods need it
	c.Apply(t, pool("paired")+pool("whole")+pod("p0", "paired", ", llm-d.ai/role: prefill")+pod("d0", "paired", ", llm-d.ai/role: decode")+pod("w0", "whole", ""))
	p := &picker{address: process.FreeAddress(t), admin: process.FreeAddress(t)}
	p.args = []string{"serve", "--picker", p.address, "--listen", "", "--admin", p.admin, "--pairs-first", "--kubeconfig", c.AdminKubeconfig(t),
		"--kubernetes-namespace", "models", "--inference-pools", "paired,whole", "--kubernetes-connector", "llmd-sidecar"}
	p.start(t)
	process.WaitFor(t, p.p, "the picker to see the pods", process.ReadyWithin, process.SeesUp("http://"+p.admin, 3))
	gateway := startProxy(t, standalone(t, p)).url
	ask := func(model string) (int, error) {
		body := strings.Replace(chat(0, words(900), ""), `"model":"test-model"`, fmt.Sprintf(`"model":%q`, model), 1)
		a := send(t.Context(), gateway+chatPath, body)
		return a.status, a.err
	}
	for _, model := range []string{"paired", "whole"} {
		for range 4 {
			if status, err := ask(model); status != http.StatusOK || err != nil {
				t.Errorf("%s: %d, %v", model, status, err)
			}
		}
	}
	prefill, err := c.Pods("models", "llm-d.ai/role=prefill")
	if err != nil || len(prefill) != 1 {
		t.Fatalf("%d prefill pods, %v", len(prefill), err)
	}
	if done := workOf(t, []*server{{url: "http://" + prefill[0].Status.PodIP + ":8000"}}); done != (work{Prefills: 4, Pulled: 4}) {
		t.Errorf("the prefill pod reports %+v of 4 requests", done)
	}
	c.Apply(t, pod("w1", "whole", ""))
	process.WaitFor(t, p.p, "the picker to see a further pod", process.ReadyWithin, process.SeesUp("http://"+p.admin, 4))
	c.Kubectl(t, "-n", "models", "delete", "inferencepool", "paired")
	process.WaitFor(t, p.p, "the deleted pool's model to be refused", process.ReadyWithin, func() error {
		if status, _ := ask("paired"); status < 400 {
			return errors.New("it is served")
		}
		return nil
	})
	if status, err := ask("whole"); status != http.StatusOK || err != nil {
		t.Errorf("the other pool's: %d, %v", status, err)
	}
	checkIdle(t, p)
}
