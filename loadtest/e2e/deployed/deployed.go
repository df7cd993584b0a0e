// Package deployed is deploy/kustomize at work: applied to a real control plane, its
// pods run as processes of this machine, simulated engines in the place of vLLM.
package deployed

import (
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

// Namespace is where deploy/kustomize puts all it has.
const Namespace = "tandem"

// Deployment is deploy/kustomize and the cluster that it is in.
type Deployment struct {
	*cluster.Cluster
	root string
	dir  string // for what the pods write
}

// Start applies deploy/kustomize as its first line says, on two nodes, and waits
// until all is ready.
func Start(t testing.TB) *Deployment {
	t.Helper()
	d := &Deployment{Cluster: cluster.Start(t), root: process.Root(t), dir: t.TempDir()}
	d.RunPods(t, d.run,
		cluster.Node{Name: "node-1", Labels: map[string]string{"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/rack": "r1"}},
		cluster.Node{Name: "node-2", Labels: map[string]string{"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/rack": "r2"}})
	t.Log(d.Kubectl(t, "apply", "--server-side", "-k", "deploy/kustomize"))
	for _, name := range []string{"redis", "vllm-prefill", "vllm-decode", "tandem"} {
		d.WaitRollout(t, name)
	}
	return d
}

// WaitRollout waits until a Deployment is as it should be.
func (d *Deployment) WaitRollout(t testing.TB, name string) {
	t.Helper()
	d.Kubectl(t, "-n", Namespace, "rollout", "status", "deployment/"+name, "--timeout=60s")
}

// Gateway is the address of the first gateway's pod.
func (d *Deployment) Gateway(t testing.TB) string {
	t.Helper()
	return d.Pods(t, "app.kubernetes.io/name=tandem")[0].Status.PodIP
}

// Pods lists those of the deployment's pods that a label selector matches and that
// are not on their way out.
func (d *Deployment) Pods(t testing.TB, selector string) []cluster.Pod {
	t.Helper()
	pods, err := d.Cluster.Pods(Namespace, selector)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(pods, func(p cluster.Pod) bool { return p.Metadata.DeletionTimestamp != nil })
}

// run starts what a pod of the deployment would run.
func (d *Deployment) run(pod cluster.Pod) (cluster.Running, error) {
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
		redis, err := d.Cluster.Pods(Namespace, "app.kubernetes.io/name=redis")
		if err != nil || len(redis) == 0 || redis[0].Status.PodIP == "" {
			return nil, errors.Join(cluster.ErrLater, err)
		}
		// Service names and the mounted token are what a node would add.
		places := strings.NewReplacer("--listen=:", "--listen="+ip+":", "--admin=:", "--admin="+ip+":", "--scaler=:", "--scaler="+ip+":", "--redis=redis:", "--redis="+redis[0].Status.PodIP+":")
		for _, arg := range c.Args {
			args = append(args, places.Replace(arg))
		}
		token, err := d.Token(Namespace, pod.Spec.ServiceAccountName)
		if err != nil {
			return nil, err
		}
		access, err := d.Kubeconfig(token)
		if err != nil {
			return nil, err
		}
		args = append(args, "--kubernetes-namespace="+Namespace, "--kubeconfig", access, "--drain-delay=0s")
		r.ready = process.Answers("http://" + ip + ":8081/readyz")
	case "vllm":
		bin = filepath.Join(d.root, "bin/tandem-lab")
		args = []string{"engine", "--listen", ip + ":8000", "--role", pod.Metadata.Labels["tandem/role"], "--time-scale", "0.2"}
		for _, arg := range c.Args {
			if strings.HasPrefix(arg, "--model=") {
				args = append(args, arg)
			}
		}
		r.ready = process.Answers("http://" + ip + ":8000/health")
	default:
		return nil, fmt.Errorf("unknown container %s", c.Name)
	}
	r.launch = func() (*process.Process, error) { return process.Launch(nil, pod.Metadata.Name, bin, args...) }
	if c.Name == "vllm" {
		r.loaded = time.Now().Add(loading)
		return r, nil
	}
	return r, r.start()
}

// loading is how long an engine takes to load its model. Until then it is not there.
const loading = 2 * time.Second

// podProcess is a process in the place of a pod. One goroutine uses it at a time.
type podProcess struct {
	launch  func() (*process.Process, error)
	process *process.Process // nil while it loads
	loaded  time.Time
	ready   func() error
	preStop []string
	ip      string
}

func (p *podProcess) start() (err error) {
	p.process, err = p.launch()
	return err
}

func (p *podProcess) Ready() error {
	if time.Now().Before(p.loaded) {
		return errors.New("it loads its model")
	}
	if p.process == nil {
		if err := p.start(); err != nil {
			return err
		}
	}
	return p.ready()
}

func (p *podProcess) Stop() error {
	if p.process == nil {
		return nil
	}
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

// Server is an entry of the gateway's /debug/servers.
type Server struct {
	ID, Role, Host, Rack, Zone string
	Up, Draining               bool
	Requests                   map[string]int `json:"in_flight_of_all"` // by leg, those of other gateways too
}

// Servers asks a gateway, by its admin address, for its servers.
func Servers(admin string) (servers []Server, err error) {
	return servers, process.JSON("http://"+admin+"/debug/servers", &servers)
}

// Get returns the text at a URL.
func Get(url string) (string, error) {
	res, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return string(text), err
}

// connects is a condition for waitFor: a process listens at the address.
func connects(addr string) func() error {
	return func() error {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			conn.Close()
		}
		return err
	}
}

// WaitServers waits until the servers of a gateway are as they should be.
func WaitServers(t testing.TB, admin, what string, holds func([]Server) bool) {
	t.Helper()
	process.WaitFor(t, nil, what, process.ReadyWithin, func() error {
		servers, err := Servers(admin)
		if err == nil && !holds(servers) {
			err = fmt.Errorf("servers are %+v", servers)
		}
		return err
	})
}

// Count returns how many are.
func Count[T any](all []T, is func(T) bool) (n int) {
	for _, each := range all {
		if is(each) {
			n++
		}
	}
	return n
}
