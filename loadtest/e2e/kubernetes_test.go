package e2e

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/cluster"
	"github.com/tandem-gateway/tandem/loadtest/e2e/deployed"
	"github.com/tandem-gateway/tandem/loadtest/e2e/load"
)

// kustomized is what TestKustomize works with.
type kustomized struct{ *deployed.Deployment }

// TestKustomize applies deploy/kustomize as its first line says, and works with what
// comes of it.
func TestKustomize(t *testing.T) {
	d := kustomized{deployed.Start(t)}
	gateway := d.Gateway(t)

	t.Run("servers are what pods and nodes say", func(t *testing.T) {
		servers, err := deployed.Servers(gateway + ":8081")
		if err != nil {
			t.Fatal(err)
		}
		roles := map[string]int{}
		for _, s := range servers {
			roles[s.Role]++
			if !s.Up || !strings.HasPrefix(s.Host, "node-") || s.Rack == "" || s.Zone != "z1" {
				t.Errorf("%+v", s)
			}
		}
		if roles["prefill"] != 2 || roles["decode"] != 2 {
			t.Errorf("roles: %v", roles)
		}
	})
	t.Run("pods have no more rights than they need", func(t *testing.T) { d.checkRights(t) })
	t.Run("a rollout of all engines under load fails nothing", func(t *testing.T) { d.rollEngines(t, gateway) })
	t.Run("a change is live within a second", func(t *testing.T) { d.grow(t, gateway) })
	t.Run("Services and InferencePools are found as well", func(t *testing.T) { d.findOtherwise(t) })
	t.Run("without the API server all goes on", func(t *testing.T) { d.loseAPIServer(t, gateway) })
}

// checkRights looks at what pods may do in the cluster and on their nodes.
func (d kustomized) checkRights(t *testing.T) {
	for _, right := range []struct {
		verb, resource string
		want           bool
	}{
		{"list", "pods", true}, {"watch", "pods", true}, {"get", "nodes", true},
		{"create", "pods", false}, {"delete", "pods", false}, {"patch", "pods", false},
		{"get", "secrets", false}, {"get", "configmaps", false}, {"create", "pods/exec", false},
	} {
		if may := d.May(t, deployed.Namespace, "tandem", right.verb, right.resource); may != right.want {
			t.Errorf("the gateway may %s %s: %v", right.verb, right.resource, may)
		}
	}
	for _, pod := range d.Pods(t, "") {
		c := pod.Spec.Containers[0]
		if c.Name != "vllm" && !c.SecurityContext.ReadOnlyRootFilesystem { // vLLM compiles and caches
			t.Errorf("%s may write to its image", pod.Metadata.Name)
		}
		if asks := pod.Spec.AutomountToken == nil || *pod.Spec.AutomountToken; asks != (c.Name == "tandem") {
			t.Errorf("%s has a service account's token: %v", pod.Metadata.Name, asks)
		}
	}
	err := d.Do("POST", "/api/v1/namespaces/"+deployed.Namespace+"/pods", map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "root"},
		"spec": map[string]any{"containers": []map[string]any{{"name": "c", "image": "x"}}},
	}, nil)
	if err == nil || !strings.Contains(err.Error(), "restricted") {
		t.Errorf("a pod that asks for nothing is let in: %v", err)
	}
}

// rollEngines replaces every engine while requests arrive.
func (d kustomized) rollEngines(t *testing.T, gateway string) {
	before := d.Pods(t, "tandem/role")
	run := load.Start(t, "http://"+gateway+":8080", 10, 5*time.Minute)
	for _, name := range []string{"deployment/vllm-prefill", "deployment/vllm-decode"} {
		d.Kubectl(t, "-n", "tandem", "rollout", "restart", name)
	}
	d.WaitRollout(t, "vllm-prefill")
	d.WaitRollout(t, "vllm-decode")
	run.Finish(t)
	for _, pod := range d.Pods(t, "tandem/role") {
		if slices.ContainsFunc(before, func(b cluster.Pod) bool { return b.Metadata.UID == pod.Metadata.UID }) {
			t.Errorf("%s was not replaced", pod.Metadata.Name)
		}
	}
}

// grow adds a decode server and drains another by its label.
func (d kustomized) grow(t *testing.T, gateway string) {
	d.Kubectl(t, "-n", "tandem", "scale", "deployment/vllm-decode", "--replicas=3")
	var ready time.Time
	waitFor(t, nil, "a third decode server", readyWithin, func() error {
		pods := d.Pods(t, "tandem/role=decode")
		if n := deployed.Count(pods, func(p cluster.Pod) bool { return p.Ready() }); n != 3 {
			return fmt.Errorf("%d pods are ready", n)
		}
		ready = time.Now()
		return nil
	})
	usable := func(s deployed.Server) bool { return s.Role == "decode" && s.Up && !s.Draining }
	deployed.WaitServers(t, gateway+":8081", "three usable decode servers", func(servers []deployed.Server) bool { return deployed.Count(servers, usable) == 3 })
	if took := time.Since(ready); took > 10*time.Second { // the machine may be busy
		t.Errorf("a ready pod took requests after %v", took)
	}
	pod := d.Pods(t, "tandem/role=decode")[0]
	drains := func(label string, want bool) time.Duration {
		d.Kubectl(t, "-n", "tandem", "label", "pod", pod.Metadata.Name, label)
		labelled := time.Now()
		deployed.WaitServers(t, gateway+":8081", "the pod with "+label+" to be obeyed", func(servers []deployed.Server) bool {
			return slices.ContainsFunc(servers, func(s deployed.Server) bool { return s.ID == pod.Status.PodIP+":8000" && s.Draining == want })
		})
		return time.Since(labelled)
	}
	soonest := drains("tandem/drain=true", true)
	for tries := 0; tries < 5 && soonest > time.Second; tries++ { // so one of some tries will do
		drains("tandem/drain-", false)
		soonest = min(soonest, drains("tandem/drain=true", true))
	}
	if soonest > time.Second {
		t.Errorf("the label was obeyed after %v at best", soonest)
	}
}

// findOtherwise has a second gateway find a prefill server behind a Service without
// pods, and the decode pods through an InferencePool, with the rights of the first.
func (d kustomized) findOtherwise(t *testing.T) {
	engine := net.JoinHostPort(ownAddress(t), portOf(t, freeAddress(t)))
	pods := d.Pods(t, "app.kubernetes.io/name=vllm-decode")
	p := start(t, "engine behind a Service", "bin/tandem-lab", "engine", "--listen", engine, "--role", "prefill", "--model", "Qwen/Qwen3-0.6B")
	waitFor(t, p, "the engine", readyWithin, answers("http://"+engine+"/health"))
	d.Kubectl(t, "apply", "--server-side", "-f", "loadtest/e2e/testdata/inferencepool.yaml")
	d.Kubectl(t, "wait", "--for=condition=Established", "crd/inferencepools.inference.networking.k8s.io", "--timeout=30s")
	host, port, err := net.SplitHostPort(engine)
	if err != nil {
		t.Fatal(err)
	}
	d.Apply(t, fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: elsewhere, namespace: tandem, labels: {kubernetes.io/service-name: elsewhere, tandem/role: prefill, of: elsewhere}}
addressType: IPv4
ports: [{name: http, port: %s}]
endpoints: [{addresses: [%s], zone: z9, conditions: {ready: true}}]
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: decode, namespace: tandem}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: vllm-decode}}
  targetPorts: [{number: 8000}]
`, port, host))
	token, err := d.Token(deployed.Namespace, "tandem")
	if err != nil {
		t.Fatal(err)
	}
	access, err := d.Kubeconfig(token)
	if err != nil {
		t.Fatal(err)
	}
	listen, admin := freeAddress(t), freeAddress(t)
	p = start(t, "a gateway outside", "bin/tandem", "serve", "--listen", listen, "--admin", admin, "--kubeconfig", access,
		"--kubernetes-namespace", deployed.Namespace, "--kubernetes-services", "of=elsewhere", "--inference-pools", "decode")
	waitFor(t, p, "the gateway outside", readyWithin, answers("http://"+admin+"/readyz"))
	checked, err := exec.Command("../../bin/tandem", "check", "--kubeconfig", access,
		"--kubernetes-namespace", deployed.Namespace, "--kubernetes-services", "of=elsewhere", "--inference-pools", "decode").CombinedOutput()
	t.Logf("tandem check (%v):\n%s", err, checked)
	// The processes in the place of pods share one network, where only one could bind the
	// port of KV events that the pods' labels name: that, and nothing else, is wrong.
	silent := 0
	for _, pod := range pods {
		silent += strings.Count(string(checked), "events tcp://"+pod.Status.PodIP+":5557: nothing answers there\n")
	}
	if !strings.Contains(string(checked), engine) || silent != len(pods) || strings.Contains(string(checked), "model ") || err == nil {
		t.Errorf("check found %d pods of %d whose events are silent, or something else: %v", silent, len(pods), err)
	}
	deployed.WaitServers(t, admin, "the Service's server and the pool's", func(servers []deployed.Server) bool {
		return len(servers) == 1+len(pods) && slices.ContainsFunc(servers, func(s deployed.Server) bool {
			return s.ID == engine && s.Up && s.Role == "prefill" && s.Zone == "z9"
		})
	})
	run := load.Start(t, "http://"+listen, 10, 2*time.Second)
	run.Check(t)
	d.Kubectl(t, "-n", "tandem", "delete", "endpointslice/elsewhere", "inferencepool/decode")
	deployed.WaitServers(t, admin, "no server any more", func(servers []deployed.Server) bool { return len(servers) == 0 })
}

// ownAddress is an address of this machine that is not of its loopback, which
// EndpointSlices may not name.
func ownAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range all {
		if ip, is := address.(*net.IPNet); is && ip.IP.To4() != nil && ip.IP.IsGlobalUnicast() {
			return ip.IP.String()
		}
	}
	t.Fatal("this machine has no address but its loopback")
	return ""
}

// loseAPIServer takes the API server away under load and brings it back.
func (d kustomized) loseAPIServer(t *testing.T, gateway string) {
	was, err := deployed.Servers(gateway + ":8081")
	if err != nil {
		t.Fatal(err)
	}
	d.StopAPIServer(t)
	waitFor(t, nil, "the gateway to notice", readyWithin, func() error {
		text, err := deployed.Get("http://" + gateway + ":8081/metrics")
		if err == nil && !strings.Contains(text, `tandem_kubernetes_up{resource="pods"} 0`) {
			err = errors.New("it has not")
		}
		return err
	})
	run := load.Start(t, "http://"+gateway+":8080", 10, 5*time.Second)
	run.Check(t)
	is, err := deployed.Servers(gateway + ":8081")
	if err != nil || len(is) != len(was) {
		t.Errorf("%d servers without the API server, %d before (%v)", len(is), len(was), err)
	}
	d.StartAPIServer(t)
	d.Kubectl(t, "-n", "tandem", "scale", "deployment/vllm-prefill", "--replicas=3")
	deployed.WaitServers(t, gateway+":8081", "the servers that came later", func(servers []deployed.Server) bool {
		return deployed.Count(servers, func(s deployed.Server) bool { return s.Role == "prefill" && s.Up && !s.Draining }) == 3
	})
}
