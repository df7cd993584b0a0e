package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/e2e/cluster"
)

// A gateway with the rights of deploy/kustomize follows InferenceObjectives and
// InferenceModelRewrites of its pool, as the Inference Extension defines them: requests go to the model
// that is named behind theirs as soon as the API server has the rewrite, and not any more once that is
// gone.
func TestInferenceObjectives(t *testing.T) {
	c := cluster.Start(t)
	for _, crd := range []string{
		"inference-crds/inference.networking.k8s.io_inferencepools.yaml",
		"objectives-crds/inference.networking.x-k8s.io_inferenceobjectives.yaml", "objectives-crds/inference.networking.x-k8s.io_inferencemodelrewrites.yaml",
	} {
		c.Kubectl(t, "apply", "--server-side", "-f", ".cache/e2e/"+crd)
	}
	c.Kubectl(t, "wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
	c.Kubectl(t, "create", "namespace", "llm-d")
	c.Kubectl(t, "apply", "-n", "llm-d", "--server-side", "-k", "deploy/kustomize/picker")
	token, err := c.Token("llm-d", "tandem")
	if err != nil {
		t.Fatal(err)
	}
	access, err := c.Kubeconfig(token)
	if err != nil {
		t.Fatal(err)
	}
	engine, listen, admin := freeAddress(t), freeAddress(t), freeAddress(t)
	start(t, "engine", "bin/tandem-lab", "engine", "--listen", engine, "--model", "real")
	p := start(t, "gateway", "bin/tandem", "serve", "--both", "http://"+engine, "--listen", listen, "--admin", admin,
		"--kubeconfig", access, "--kubernetes-namespace", "llm-d", "--inference-pools", "pool", "--inference-objectives", "inference.networking.x-k8s.io")
	waitFor(t, p, "the gateway", readyWithin, answers("http://"+admin+"/readyz"))
	c.Apply(t, `apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceObjective
metadata: {name: critical, namespace: llm-d}
spec: {priority: 10, poolRef: {name: pool}}
---
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModelRewrite
metadata: {name: chat, namespace: llm-d}
spec:
  poolRef: {name: pool}
  rules:
    - matches: [{model: {type: Exact, value: chat}}]
      targets: [{modelRewrite: real, weight: 100}]
`)
	ask := func(want int) func() error {
		return func() error {
			status, body := complete(t, listen, "chat")
			if status != want || want == http.StatusOK && !strings.Contains(body, `"model":"real"`) {
				return fmt.Errorf("%d %s", status, body)
			}
			return nil
		}
	}
	waitFor(t, p, "the rewrite to be followed", readyWithin, ask(http.StatusOK))
	waitFor(t, p, "the objective to be followed", readyWithin, func() error {
		if !strings.Contains(p.Output(), `"objectives":1`) {
			return errors.New("the log does not say so")
		}
		return nil
	})
	c.Kubectl(t, "-n", "llm-d", "delete", "inferencemodelrewrites.inference.networking.x-k8s.io/chat")
	waitFor(t, p, "the rewrite to be forgotten", readyWithin, ask(http.StatusNotFound))
}

// complete asks for a completion, with the header of an InferenceObjective.
func complete(t *testing.T, address, model string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, "http://"+address+"/v1/completions",
		strings.NewReader(`{"model":"`+model+`","prompt":"hi","max_tokens":1}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Llm-D-Inference-Objective", "critical")
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}
