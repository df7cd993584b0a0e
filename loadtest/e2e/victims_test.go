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

// TestVictims: the servers that are to go are drained, and go.
func TestVictims(t *testing.T) {
	d := kustomized{deployed.Start(t)}
	d.Kubectl(t, "-n", "tandem", "scale", "deployment/vllm-decode", "--replicas=3")
	d.WaitRollout(t, "vllm-decode")
	gateway := d.withVictims(t)
	t.Run("of a Deployment the idle pod goes", func(t *testing.T) { d.loseIdle(t, gateway) })
	t.Run("of a StatefulSet the highest goes when its streams have ended", func(t *testing.T) { d.loseHighest(t, gateway) })
	t.Run("switched off, marks that gateways gave are taken back", d.takeBack)
}

// takeBack leaves a mark of a gateway that is gone, and one of the pod's owner, to gateways
// that choose no server.
func (d kustomized) takeBack(t *testing.T) {
	d.Kubectl(t, "-n", "tandem", "patch", "deployment", "tandem", "--type=json",
		"-p", `[{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--scale-victims=false"}]`)
	d.WaitRollout(t, "tandem")
	pods := d.Pods(t, "tandem/role=decode")
	const cost = "controller.kubernetes.io/pod-deletion-cost"
	d.Kubectl(t, "-n", "tandem", "annotate", "pod", pods[0].Metadata.Name, cost+"=-1", "tandem/leaving=-1")
	d.Kubectl(t, "-n", "tandem", "annotate", "pod", pods[1].Metadata.Name, cost+"=100")
	waitFor(t, nil, "the mark to be taken back, and the owner's cost to stay", readyWithin, func() error {
		for _, pod := range d.Pods(t, "tandem/role=decode") {
			has, want := pod.Metadata.Annotations, map[string]string{pods[1].Metadata.Name: "100"}[pod.Metadata.Name]
			if has[cost] != want || has["tandem/leaving"] != "" {
				return fmt.Errorf("%s has %v", pod.Metadata.Name, has)
			}
		}
		return nil
	})
}

// loseIdle gives all decode servers streams but the oldest: kube-controller-manager, which
// else prefers the youngest, deletes that one. Another may have been chosen before, when all were
// idle: it does not stay chosen.
func (d kustomized) loseIdle(t *testing.T, gateway string) {
	pods := d.Pods(t, "tandem/role=decode")
	slices.SortFunc(pods, func(a, b cluster.Pod) int { return a.Metadata.CreationTimestamp.Compare(b.Metadata.CreationTimestamp) })
	oldest := pods[0]
	deployed.WaitServers(t, gateway+":8081", "one to be chosen while all are idle", func(servers []deployed.Server) bool {
		return deployed.Count(servers, func(s deployed.Server) bool { return s.Role == "decode" && s.Draining }) == 1
	})
	streams := d.streamsElsewhere(t, gateway, endless, oldest)
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
	d.drains(t, gateway, oldest)
	d.wants(t, gateway, `"replicas":2,`)
	d.shrinks(t, "deployment/vllm-decode", oldest)
	for _, s := range streams {
		s.check(t)
	}
}

// loseHighest gives streams to the pod alone that a StatefulSet will delete.
func (d kustomized) loseHighest(t *testing.T, gateway string) {
	text, err := os.ReadFile(filepath.Join(process.Root(t), "deploy/kustomize/vllm-nixl/decode.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	manifest, _, _ := strings.Cut(string(text), "\n---\n")
	before, after, found := strings.Cut(manifest, "  strategy:\n")
	_, after, cut := strings.Cut(after, "maxUnavailable: 1}\n")
	if !found || !cut {
		t.Fatal("the Deployment has no strategy to cut out")
	}
	d.Kubectl(t, "-n", "tandem", "delete", "deployment/vllm-decode")
	d.Apply(t, strings.NewReplacer("kind: Deployment\nmetadata:\n", "kind: StatefulSet\nmetadata:\n  namespace: tandem\n",
		"vllm-decode", "decode-set", "  replicas: 2\n", "  replicas: 3\n  podManagementPolicy: Parallel\n  serviceName: none\n").Replace(before+after))
	var pods []cluster.Pod
	waitFor(t, nil, "the pods of the set", 4*readyWithin, func() error {
		pods = d.Pods(t, "app.kubernetes.io/name=decode-set")
		if n := deployed.Count(pods, func(p cluster.Pod) bool { return p.Ready() }); n != 3 || len(d.Pods(t, "tandem/role=decode")) != 3 {
			return fmt.Errorf("%d are ready", n)
		}
		return nil
	})
	slices.SortFunc(pods, func(a, b cluster.Pod) int { return strings.Compare(a.Metadata.Name, b.Metadata.Name) })
	streams := d.streamsElsewhere(t, gateway, brief, pods[0], pods[1])
	d.drains(t, gateway, pods[2])
	d.wants(t, gateway, `"reason":"draining"`)
	d.wants(t, gateway, `"replicas":2,`)
	for _, s := range streams {
		if err := <-s.ended; err != nil {
			t.Errorf("a stream broke: %v", err)
		}
	}
	d.shrinks(t, "statefulset/decode-set", pods[2])
}

// How long answers are, in tokens: until a test has ended, some minutes; and until they are waited for.
const (
	endless = 120_000
	brief   = 8000
)

// streamsElsewhere opens streams on all decode pods but some, one at least on each.
func (d kustomized) streamsElsewhere(t *testing.T, gateway string, tokens int, not ...cluster.Pod) (streams []*stream) {
	t.Helper()
	for _, pod := range not {
		d.Kubectl(t, "-n", "tandem", "label", "pod", pod.Metadata.Name, "tandem/drain=true")
	}
	for _, pod := range not {
		d.drains(t, gateway, pod)
	}
	on := make(map[string]bool)
	for _, pod := range d.Pods(t, "tandem/role=decode") {
		if !slices.ContainsFunc(not, func(n cluster.Pod) bool { return n.Metadata.UID == pod.Metadata.UID }) {
			on[pod.Status.PodIP+":8000"] = true
		}
	}
	// One that was chosen before takes requests again now that no more than two are left.
	deployed.WaitServers(t, gateway+":8081", "the others to take requests", func(servers []deployed.Server) bool {
		return deployed.Count(servers, func(s deployed.Server) bool { return on[s.ID] && s.Up && !s.Draining }) == len(on)
	})
	deployed.WaitServers(t, gateway+":8081", "each of the others to have a stream", func(servers []deployed.Server) bool {
		if slices.ContainsFunc(servers, func(s deployed.Server) bool { return on[s.ID] && s.Requests["decode"] == 0 }) {
			streams = append(streams, openStream(t, "http://"+gateway+":8080", tokens))
			return false
		}
		return true
	})
	for _, pod := range not {
		d.Kubectl(t, "-n", "tandem", "label", "pod", pod.Metadata.Name, "tandem/drain-")
	}
	return streams
}

// drains waits until a gateway sends a pod nothing new.
func (d kustomized) drains(t *testing.T, gateway string, pod cluster.Pod) {
	t.Helper()
	deployed.WaitServers(t, gateway+":8081", pod.Metadata.Name+" to drain", func(servers []deployed.Server) bool {
		return slices.ContainsFunc(servers, func(s deployed.Server) bool { return s.ID == pod.Status.PodIP+":8000" && s.Draining })
	})
}

// wants waits until what a gateway says of the decode pool has a text in it.
func (d kustomized) wants(t *testing.T, gateway, what string) {
	t.Helper()
	waitFor(t, nil, what, 4*readyWithin, func() error {
		text, err := deployed.Get("http://" + gateway + ":8081/autoscale/v1/pool?role=decode&model=Qwen/Qwen3-0.6B")
		if err == nil && !strings.Contains(text, what) {
			err = errors.New(text)
		}
		return err
	})
}

// shrinks takes what is scaled to two pods, as HPA does, of which none may be the victim.
func (d kustomized) shrinks(t *testing.T, scaled string, victim cluster.Pod) {
	t.Helper()
	d.Kubectl(t, "-n", "tandem", "scale", scaled, "--replicas=2")
	waitFor(t, nil, "one pod to go", readyWithin, func() error {
		if left := d.Pods(t, "tandem/role=decode"); len(left) != 2 {
			return fmt.Errorf("%d are left", len(left))
		}
		return nil
	})
	for _, pod := range d.Pods(t, "tandem/role=decode") {
		if pod.Metadata.UID == victim.Metadata.UID {
			t.Errorf("another pod went than %s, which was chosen", victim.Metadata.Name)
		}
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

// openStream begins an answer of so many tokens and reads it to its end.
func openStream(t *testing.T, url string, tokens int) *stream {
	t.Helper()
	resp, err := client.Post(url+"/v1/completions", "application/json",
		strings.NewReader(fmt.Sprintf(`{"model":"Qwen/Qwen3-0.6B","prompt":"a river","max_tokens":%d,"ignore_eos":true,"stream":true}`, tokens)))
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
