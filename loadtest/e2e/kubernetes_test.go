package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/cluster"
	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// deployment is deploy/kustomize on a real control plane: its pods are processes
// here, simulated engines in the place of vLLM.
type deployment struct {
	*cluster.Cluster
	root string
	dir  string // for what the pods write
}

// TestKustomize applies deploy/kustomize as its first line says, and works with what
// comes of it.
func TestKustomize(t *testing.T) {
	d := &deployment{Cluster: cluster.Start(t), root: process.Root(t), dir: t.TempDir()}
	d.RunPods(t, func(pod cluster.Pod) (cluster.Running, error) { return d.run(pod) },
		cluster.Node{Name: "node-1", Labels: map[string]string{"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/rack": "r1"}},
		cluster.Node{Name: "node-2", Labels: map[string]string{"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/rack": "r2"}})
	t.Log(d.Kubectl(t, "apply", "--server-side", "-k", "deploy/kustomize"))
	for _, name := range []string{"redis", "vllm-prefill", "vllm-decode", "tandem"} {
		d.Kubectl(t, "-n", "tandem", "rollout", "status", "deployment/"+name, "--timeout=60s")
	}
	gateway := d.pods(t, "app.kubernetes.io/name=tandem")[0].Status.PodIP

	t.Run("servers are what pods and nodes say", func(t *testing.T) {
		servers, err := serversOf(gateway)
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
	t.Run("a rollout of all engines under load fails nothing", func(t *testing.T) { d.rollEngines(t, gateway) })
	t.Run("a change is live within a second", func(t *testing.T) { d.grow(t, gateway) })
	t.Run("without the API server all goes on", func(t *testing.T) { d.loseAPIServer(t, gateway) })
}

// rollEngines replaces every engine while requests arrive.
func (d *deployment) rollEngines(t *testing.T, gateway string) {
	before := d.pods(t, "tandem/role")
	load := startLoad(t, "http://"+gateway+":8080", 10, 30*time.Second)
	for _, name := range []string{"deployment/vllm-prefill", "deployment/vllm-decode"} {
		d.Kubectl(t, "-n", "tandem", "rollout", "restart", name)
	}
	for _, name := range []string{"deployment/vllm-prefill", "deployment/vllm-decode"} {
		d.Kubectl(t, "-n", "tandem", "rollout", "status", name, "--timeout=60s")
	}
	select {
	case <-load.ended:
		t.Error("the load ended before the rollout did")
	default:
	}
	load.check(t)
	for _, pod := range d.pods(t, "tandem/role") {
		if slices.ContainsFunc(before, func(b cluster.Pod) bool { return b.Metadata.UID == pod.Metadata.UID }) {
			t.Errorf("%s was not replaced", pod.Metadata.Name)
		}
	}
}

// grow adds a decode server and drains another by its label.
func (d *deployment) grow(t *testing.T, gateway string) {
	d.Kubectl(t, "-n", "tandem", "scale", "deployment/vllm-decode", "--replicas=3")
	var ready time.Time
	waitFor(t, nil, "a third decode server", readyWithin, func() error {
		pods := d.pods(t, "tandem/role=decode")
		if n := count(pods, func(p cluster.Pod) bool { return p.Ready() }); n != 3 {
			return fmt.Errorf("%d pods are ready", n)
		}
		ready = time.Now()
		return nil
	})
	usable := func(s serverStatus) bool { return s.Role == "decode" && s.Up && !s.Draining }
	waitServers(t, gateway, "three usable decode servers", func(servers []serverStatus) bool { return count(servers, usable) == 3 })
	if took := time.Since(ready); took > time.Second {
		t.Errorf("a ready pod took requests after %v", took)
	}
	pod := d.pods(t, "tandem/role=decode")[0]
	d.Kubectl(t, "-n", "tandem", "label", "pod", pod.Metadata.Name, "tandem/drain=true")
	labelled := time.Now()
	waitServers(t, gateway, "the labelled pod to drain", func(servers []serverStatus) bool {
		return slices.ContainsFunc(servers, func(s serverStatus) bool { return s.ID == pod.Status.PodIP+":8000" && s.Draining })
	})
	if took := time.Since(labelled); took > time.Second {
		t.Errorf("the label was obeyed after %v", took)
	}
}

// loseAPIServer takes the API server away under load and brings it back.
func (d *deployment) loseAPIServer(t *testing.T, gateway string) {
	was, err := serversOf(gateway)
	if err != nil {
		t.Fatal(err)
	}
	d.StopAPIServer(t)
	waitFor(t, nil, "the gateway to notice", readyWithin, func() error {
		text, err := get("http://" + gateway + ":8081/metrics")
		if err == nil && !strings.Contains(text, `tandem_kubernetes_up{resource="pods"} 0`) {
			err = errors.New("it has not")
		}
		return err
	})
	load := startLoad(t, "http://"+gateway+":8080", 10, 5*time.Second)
	load.check(t)
	is, err := serversOf(gateway)
	if err != nil || len(is) != len(was) {
		t.Errorf("%d servers without the API server, %d before (%v)", len(is), len(was), err)
	}
	d.StartAPIServer(t)
	d.Kubectl(t, "-n", "tandem", "scale", "deployment/vllm-prefill", "--replicas=3")
	waitServers(t, gateway, "the servers that came later", func(servers []serverStatus) bool {
		return count(servers, func(s serverStatus) bool { return s.Role == "prefill" && s.Up && !s.Draining }) == 3
	})
}

func (d *deployment) pods(t *testing.T, selector string) []cluster.Pod {
	t.Helper()
	pods, err := d.Pods("tandem", selector)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(pods, func(p cluster.Pod) bool { return p.Metadata.DeletionTimestamp != nil })
}

// run starts what a pod of the deployment would run.
func (d *deployment) run(pod cluster.Pod) (cluster.Running, error) {
	c, ip := pod.Spec.Containers[0], pod.Status.PodIP
	bin := filepath.Join(d.root, "bin/tandem")
	r := &podProcess{preStop: c.Lifecycle.PreStop.Exec.Command, ip: ip}
	var args []string
	switch c.Name {
	case "redis":
		found, err := exec.LookPath(c.Args[0])
		if err != nil {
			return nil, err
		}
		bin, args = found, append(slices.Clone(c.Args[1:]), "--bind", ip, "--dir", d.dir)
		r.ready = connects(ip + ":6379")
	case "tandem":
		redis, err := d.Pods("tandem", "app.kubernetes.io/name=redis")
		if err != nil || len(redis) == 0 || redis[0].Status.PodIP == "" {
			return nil, errors.Join(errors.New("the gateway wants a Redis"), err)
		}
		// Service names and the mounted token are what a node would add.
		places := strings.NewReplacer("--listen=:", "--listen="+ip+":", "--admin=:", "--admin="+ip+":", "--scaler=:", "--scaler="+ip+":", "--redis=redis:", "--redis="+redis[0].Status.PodIP+":")
		for _, arg := range c.Args {
			args = append(args, places.Replace(arg))
		}
		token, err := d.Token("tandem", pod.Spec.ServiceAccountName)
		if err != nil {
			return nil, err
		}
		access, err := d.Kubeconfig(token)
		if err != nil {
			return nil, err
		}
		args = append(args, "--kubernetes-namespace=tandem", "--kubeconfig", access, "--drain-delay=0s")
		r.ready = process.Answers("http://" + ip + ":8081/readyz")
	case "vllm":
		args = []string{"engine", "--listen", ip + ":8000", "--role", pod.Metadata.Labels["tandem/role"], "--time-scale", "0.2"}
		r.ready = process.Answers("http://" + ip + ":8000/health")
	default:
		return nil, fmt.Errorf("unknown container %s", c.Name)
	}
	var err error
	r.process, err = process.Launch(nil, pod.Metadata.Name, bin, args...)
	return r, err
}

// podProcess is a process in the place of a pod.
type podProcess struct {
	process *process.Process
	ready   func() error
	preStop []string
	ip      string
}

func (p *podProcess) Ready() error { return p.ready() }

func (p *podProcess) Stop() error {
	var err error
	if len(p.preStop) > 0 {
		var args []string
		for _, arg := range p.preStop[1:] {
			args = append(args, strings.ReplaceAll(arg, "localhost:8000", p.ip+":8000"))
		}
		var printed []byte
		if printed, err = exec.Command(p.preStop[0], args...).CombinedOutput(); err != nil {
			err = fmt.Errorf("preStop: %w\n%s", err, printed)
		}
	}
	return errors.Join(err, p.process.Stop())
}

// serverStatus is an entry of the gateway's /debug/servers.
type serverStatus struct {
	ID, Role, Host, Rack, Zone string
	Up, Draining               bool
}

func serversOf(gateway string) (servers []serverStatus, err error) {
	text, err := get("http://" + gateway + ":8081/debug/servers")
	if err != nil {
		return nil, err
	}
	return servers, json.Unmarshal([]byte(text), &servers)
}

func get(url string) (string, error) {
	res, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return string(text), err
}

// connects is a condition for waitFor: somebody listens at the address.
func connects(addr string) func() error {
	return func() error {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			conn.Close()
		}
		return err
	}
}

func waitServers(t *testing.T, gateway, what string, holds func([]serverStatus) bool) {
	t.Helper()
	waitFor(t, nil, what, readyWithin, func() error {
		servers, err := serversOf(gateway)
		if err == nil && !holds(servers) {
			err = fmt.Errorf("servers are %+v", servers)
		}
		return err
	})
}

func count[T any](all []T, is func(T) bool) (n int) {
	for _, each := range all {
		if is(each) {
			n++
		}
	}
	return n
}
