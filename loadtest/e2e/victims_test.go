package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/e2e/cluster"
	"github.com/tandem-gateway/tandem/loadtest/e2e/deployed"
	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// TestVictims: the pod that the gateways chose is drained, and it is the one that
// kube-controller-manager deletes, which else prefers the youngest.
func TestVictims(t *testing.T) {
	d := kustomized{deployed.Start(t)}
	d.Kubectl(t, "-n", "tandem", "scale", "deployment/vllm-decode", "--replicas=3")
	d.WaitRollout(t, "vllm-decode")
	gateway := d.withVictims(t)
	admin := gateway + ":8081"

	// All but the oldest get streams.
	pods := d.Pods(t, "tandem/role=decode")
	slices.SortFunc(pods, func(a, b cluster.Pod) int { return a.Metadata.CreationTimestamp.Compare(b.Metadata.CreationTimestamp) })
	oldest := pods[0]
	d.Kubectl(t, "-n", "tandem", "label", "pod", oldest.Metadata.Name, "tandem/drain=true")
	deployed.WaitServers(t, admin, "the oldest pod to drain", func(servers []deployed.Server) bool {
		return slices.ContainsFunc(servers, func(s deployed.Server) bool { return s.ID == oldest.Status.PodIP+":8000" && s.Draining })
	})
	var streams []*stream
	for range 6 {
		streams = append(streams, openStream(t, "http://"+gateway+":8080"))
	}
	d.Kubectl(t, "-n", "tandem", "label", "pod", oldest.Metadata.Name, "tandem/drain-")

	waitFor(t, nil, "the idle pod to be chosen, and marked", 2*readyWithin, func() error {
		pods, err := d.Cluster.Pods(deployed.Namespace, "tandem/role=decode")
		if err != nil {
			return err
		}
		for _, pod := range pods {
			if cost := pod.Metadata.Annotations["controller.kubernetes.io/pod-deletion-cost"]; (cost == "-2") != (pod.Metadata.Name == oldest.Metadata.Name) {
				err = errors.Join(err, fmt.Errorf("%s costs %q", pod.Metadata.Name, cost))
			}
		}
		return err
	})
	deployed.WaitServers(t, admin, "it to drain", func(servers []deployed.Server) bool {
		return slices.ContainsFunc(servers, func(s deployed.Server) bool { return s.ID == oldest.Status.PodIP+":8000" && s.Draining })
	})
	waitFor(t, nil, "two to be asked for", readyWithin, func() error {
		text, err := deployed.Get("http://" + admin + "/autoscale/v1/pool?role=decode&model=Qwen/Qwen3-0.6B")
		if err == nil && !strings.Contains(text, `"replicas":2,`) {
			err = errors.New(text)
		}
		return err
	})
	d.Kubectl(t, "-n", "tandem", "scale", "deployment/vllm-decode", "--replicas=2") // as HPA does
	waitFor(t, nil, "one pod to go", readyWithin, func() error {
		if left := d.Pods(t, "tandem/role=decode"); len(left) != 2 {
			return fmt.Errorf("%d are left", len(left))
		}
		return nil
	})
	for _, pod := range d.Pods(t, "tandem/role=decode") {
		if pod.Metadata.UID == oldest.Metadata.UID {
			t.Errorf("another pod went than %s, which was chosen", oldest.Metadata.Name)
		}
	}
	for _, s := range streams {
		s.check(t)
	}
}

// withVictims applies deploy/kustomize with its component victims, and bounds for which
// one of three decode servers is too many. It returns a gateway's address.
func (d kustomized) withVictims(t *testing.T) (gateway string) {
	t.Helper()
	dir := t.TempDir()
	base, err := filepath.Rel(dir, filepath.Join(process.Root(t), "deploy/kustomize"))
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: tandem
resources: [%[1]s/base]
components: [%[1]s/victims]
patches:
  - target: {kind: Deployment, name: tandem}
    patch: |-
      - {op: add, path: /spec/template/spec/containers/0/args/-, value: --scale-decode-max=2}
      - {op: add, path: /spec/template/spec/containers/0/args/-, value: --scale-interval=2s}
`, base)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Kubectl(t, "apply", "--server-side", "--force-conflicts", "-k", dir)
	d.WaitRollout(t, "tandem")
	for _, right := range []string{"patch", "delete"} {
		if may := d.May(t, deployed.Namespace, "tandem", right, "pods"); may != (right == "patch") {
			t.Errorf("the gateway may %s pods: %v", right, may)
		}
	}
	return d.Gateway(t)
}

// stream is a streamed answer that is being read.
type stream struct {
	body  io.ReadCloser
	ended chan error
}

// openStream begins a long answer and reads it to its end.
func openStream(t *testing.T, url string) *stream {
	t.Helper()
	resp, err := http.Post(url+"/v1/completions", "application/json",
		strings.NewReader(`{"model":"Qwen/Qwen3-0.6B","prompt":"a river","max_tokens":8000,"ignore_eos":true,"stream":true}`))
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", resp, err)
	}
	s := &stream{body: resp.Body, ended: make(chan error, 1)}
	go func() {
		last := ""
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			if lines.Text() != "" {
				last = lines.Text()
			}
		}
		if lines.Err() == nil && last != "data: [DONE]" {
			s.ended <- fmt.Errorf("it ends with %q", last)
			return
		}
		s.ended <- lines.Err()
	}()
	t.Cleanup(func() { resp.Body.Close() })
	return s
}

// check demands that the stream did not break, whether it has ended or not.
func (s *stream) check(t *testing.T) {
	t.Helper()
	select {
	case err := <-s.ended:
		if err != nil {
			t.Errorf("a stream broke: %v", err)
		}
	default:
	}
}
