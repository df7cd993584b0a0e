package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// Node is a node that does not exist; its labels say where the pods on it are.
type Node struct {
	Name   string
	Labels map[string]string
}

// Running is what a pod runs.
type Running interface {
	// Ready says nil once the pod may take requests.
	Ready() error
	// Stop does what the preStop hook does, and ends what runs. It may take as long
	// as the pod's grace.
	Stop() error
}

// ErrLater is for pods that cannot run yet: they are tried again.
var ErrLater = errors.New("not yet")

// kubelet stands in for scheduler and nodes: it binds pods to nodes in turn, gives
// each an address of this machine, runs it, and says when it is ready and gone. One
// goroutine does all but stopping.
type kubelet struct {
	c      *Cluster
	nodes  []Node
	run    func(Pod) (Running, error)
	subnet string
	bound  int
	pods   map[string]*kept // by UID
	stops  sync.WaitGroup

	mu   sync.Mutex // guards errs
	errs []error
}

// kept is a pod that has been started.
type kept struct {
	running Running
	ready   bool
	ending  bool
}

// lookEvery is how often the kubelet looks at the cluster.
const lookEvery = 50 * time.Millisecond

// RunPods creates nodes and runs the pods of all namespaces until the test ends,
// when it stops those that are left. Run starts a pod, whose address is in its
// status; it is called by one goroutine.
func (c *Cluster) RunPods(t testing.TB, run func(Pod) (Running, error), nodes ...Node) {
	t.Helper()
	for _, n := range nodes {
		node := map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": n.Name, "labels": n.Labels}}
		if err := c.Do("POST", "/api/v1/nodes", node, nil); err != nil {
			t.Fatal(err)
		}
	}
	k := &kubelet{c: c, nodes: nodes, run: run, pods: make(map[string]*kept)}
	// Every pod has the same port; another test on this machine has another network.
	k.subnet = fmt.Sprintf("127.%d.%d", 1+rand.IntN(254), rand.IntN(255))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.loop(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		if err := errors.Join(k.errs...); err != nil {
			t.Error(err)
		}
	})
}

// loop looks after the pods until the context ends, and then stops them.
func (k *kubelet) loop(ctx context.Context) {
	defer k.stops.Wait()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			for _, p := range k.pods {
				if !p.ending {
					k.stops.Go(func() { k.record(p.running.Stop()) })
				}
			}
			return
		case <-tick.C:
		}
		pods, err := k.c.Pods("", "")
		if err != nil {
			continue // the API server is away: pods go on as they are
		}
		for _, pod := range pods {
			k.record(k.care(pod))
		}
	}
}

// record keeps an error for the end of the test. That a pod is gone or has changed
// since it was listed is none, nor that it must wait.
func (k *kubelet) record(err error) {
	if err == nil || isStale(err) || errors.Is(err, ErrLater) {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.errs = append(k.errs, err)
}

// care takes a pod one step further in its life.
func (k *kubelet) care(pod Pod) error {
	p := k.pods[pod.Metadata.UID]
	leaving := pod.Metadata.DeletionTimestamp != nil
	switch {
	case pod.Spec.NodeName == "":
		return k.bind(pod)
	case p == nil && leaving:
		return k.remove(pod)
	case p == nil:
		return k.start(pod)
	case leaving && !p.ending:
		p.ending = true
		k.stops.Go(func() { k.record(errors.Join(p.running.Stop(), k.remove(pod))) })
	case !leaving && !p.ready && p.running.Ready() == nil:
		p.ready = true
		return k.say(pod, pod.Status.PodIP, "True")
	}
	return nil
}

func (k *kubelet) bind(pod Pod) error {
	node := k.nodes[k.bound%len(k.nodes)]
	k.bound++
	return k.c.Do("POST", podPath(pod)+"/binding", map[string]any{
		"apiVersion": "v1", "kind": "Binding",
		"metadata": map[string]any{"name": pod.Metadata.Name},
		"target":   map[string]any{"kind": "Node", "name": node.Name},
	}, nil)
}

func (k *kubelet) start(pod Pod) error {
	pod.Status.PodIP = fmt.Sprintf("%s.%d", k.subnet, 1+len(k.pods))
	running, err := k.run(pod)
	if err != nil {
		return fmt.Errorf("pod %s: %w", pod.Metadata.Name, err)
	}
	k.pods[pod.Metadata.UID] = &kept{running: running}
	return k.say(pod, pod.Status.PodIP, "False")
}

// say writes the pod's status.
func (k *kubelet) say(pod Pod, ip, ready string) error {
	return k.c.Do("PATCH", podPath(pod)+"/status", map[string]any{"status": map[string]any{
		"phase": "Running", "podIP": ip, "podIPs": []map[string]any{{"ip": ip}},
		"conditions": []map[string]any{{"type": "Ready", "status": ready, "lastTransitionTime": time.Now().UTC().Format(time.RFC3339)}},
	}}, nil)
}

// remove says that a pod is gone.
func (k *kubelet) remove(pod Pod) error {
	return k.c.Do("DELETE", podPath(pod), map[string]any{"gracePeriodSeconds": 0}, nil)
}

func podPath(pod Pod) string {
	return "/api/v1/namespaces/" + pod.Metadata.Namespace + "/pods/" + pod.Metadata.Name
}
