package e2e

import (
	"errors"
	"fmt"
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
		servers, err := deployed.Servers(gateway)
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
func (d kustomized) rollEngines(t *testing.T, gateway string) {
	before := d.Pods(t, "tandem/role")
	run := load.Start(t, "http://"+gateway+":8080", 10, 30*time.Second)
	for _, name := range []string{"deployment/vllm-prefill", "deployment/vllm-decode"} {
		d.Kubectl(t, "-n", "tandem", "rollout", "restart", name)
	}
	d.WaitRollout(t, "vllm-prefill")
	d.WaitRollout(t, "vllm-decode")
	select {
	case <-run.Ended:
		t.Error("the load ended before the rollout did")
	default:
	}
	run.Check(t)
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
	deployed.WaitServers(t, gateway, "three usable decode servers", func(servers []deployed.Server) bool { return deployed.Count(servers, usable) == 3 })
	if took := time.Since(ready); took > time.Second {
		t.Errorf("a ready pod took requests after %v", took)
	}
	pod := d.Pods(t, "tandem/role=decode")[0]
	d.Kubectl(t, "-n", "tandem", "label", "pod", pod.Metadata.Name, "tandem/drain=true")
	labelled := time.Now()
	deployed.WaitServers(t, gateway, "the labelled pod to drain", func(servers []deployed.Server) bool {
		return slices.ContainsFunc(servers, func(s deployed.Server) bool { return s.ID == pod.Status.PodIP+":8000" && s.Draining })
	})
	if took := time.Since(labelled); took > time.Second {
		t.Errorf("the label was obeyed after %v", took)
	}
}

// loseAPIServer takes the API server away under load and brings it back.
func (d kustomized) loseAPIServer(t *testing.T, gateway string) {
	was, err := deployed.Servers(gateway)
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
	is, err := deployed.Servers(gateway)
	if err != nil || len(is) != len(was) {
		t.Errorf("%d servers without the API server, %d before (%v)", len(is), len(was), err)
	}
	d.StartAPIServer(t)
	d.Kubectl(t, "-n", "tandem", "scale", "deployment/vllm-prefill", "--replicas=3")
	deployed.WaitServers(t, gateway, "the servers that came later", func(servers []deployed.Server) bool {
		return deployed.Count(servers, func(s deployed.Server) bool { return s.Role == "prefill" && s.Up && !s.Draining }) == 3
	})
}
