package loop

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/cluster"
	"github.com/tandem-gateway/tandem/loadtest/e2e/deployed"
	"github.com/tandem-gateway/tandem/loadtest/e2e/load"
	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

const (
	groupSet   = "decode-groups"
	groupSets  = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/" + deployed.Namespace + "/leaderworkersets"
	groupIndex = "leaderworkerset.sigs.k8s.io/group-index"
)

// TestGroups: decode is a LeaderWorkerSet of three groups of two servers, run by its own
// controller. Wanted are groups, and KEDA and HPA scale them; of three groups the highest
// goes, which drains first, and no request fails.
func TestGroups(t *testing.T) {
	const gateways = "app.kubernetes.io/name=tandem"
	d := deployed.Start(t)
	d.StartLWS(t)
	l := &loop{Deployment: d, whole: t, grpc: d.Service(t, gateways, "9090"), admin: d.Service(t, gateways, "8081")}
	l.decodeInGroups(t, 3)
	l.gatewayArgs(t, "--scale-victims", "--scale-interval=2s", "--scale-decode-min=3", "--scale-decode-max=3")
	l.decides(t, "decode", 3)
	l.StartKEDA(t)
	l.applyScaledObjects(t, "apiVersion: apps/v1, kind: Deployment, name: vllm-decode", "apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, name: "+groupSet)
	l.hasGroups(t, 3, 3)
	before := l.groups(t)
	if n := len(l.servers(t)); n != 6 {
		t.Errorf("three groups are %d servers, want 6", n)
	}

	run := load.Start(t, "http://"+d.Service(t, gateways, "8080"), 10, 60*time.Second)
	highest := l.addresses(t, "2")
	l.addArgs(t, "--scale-decode-min=2", "--scale-decode-max=2")
	l.says(t, "decode", `"replicas":3,"held":0,"reason":"draining"`)
	l.drain(t, highest)
	l.hasGroups(t, 2, 2)
	process.WaitFor(t, nil, "the highest group's pods to go", obeyedWithin, func() error {
		after := l.groups(t)
		if len(after) != 2 || len(after["2"]) != 0 {
			return fmt.Errorf("there are %v", after)
		}
		return nil
	})
	after := l.groups(t)
	for _, index := range []string{"0", "1"} {
		if fmt.Sprint(after[index]) != fmt.Sprint(before[index]) {
			t.Errorf("of group %s %v are left of %v", index, after[index], before[index])
		}
	}
	run.Check(t)
}

// decodeInGroups puts a LeaderWorkerSet of pods like its own in the place of decode's
// Deployment, two pods to a group, and waits for it.
func (l *loop) decodeInGroups(t *testing.T, groups int) {
	t.Helper()
	const path = "/apis/apps/v1/namespaces/" + deployed.Namespace + "/deployments/vllm-decode"
	var deployment struct {
		Spec struct{ Template map[string]any }
	}
	if err := l.Do("GET", path, nil, &deployment); err != nil {
		t.Fatal(err)
	}
	l.Kubectl(t, "-n", deployed.Namespace, "delete", "deployment/vllm-decode")
	template := deployment.Spec.Template
	labels := template["metadata"].(map[string]any)["labels"].(map[string]any)
	labels["app.kubernetes.io/name"], labels["tandem/lockstep"] = groupSet, "true"
	set := map[string]any{
		"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": map[string]any{"name": groupSet},
		"spec": map[string]any{"replicas": groups, "leaderWorkerTemplate": map[string]any{"size": 2, "workerTemplate": template}},
	}
	if err := l.Do("POST", groupSets, set, nil); err != nil {
		t.Fatal(err)
	}
	process.WaitFor(t, nil, "all groups to be ready, and the Deployment's pods gone", obeyedWithin, func() error {
		pods, err := l.Cluster.Pods(deployed.Namespace, "tandem/role=decode")
		if n := deployed.Count(pods, func(p cluster.Pod) bool { return p.Ready() && p.Metadata.Labels[groupIndex] != "" }); err == nil && (n != 2*groups || len(pods) != n) {
			err = fmt.Errorf("%d of %d pods are of groups, and ready", n, len(pods))
		}
		return err
	})
}

// groups are the decode pods by the index of their group.
func (l *loop) groups(t *testing.T) map[string][]string {
	t.Helper()
	all := make(map[string][]string)
	for _, pod := range l.Pods(t, "tandem/role=decode") {
		index := pod.Metadata.Labels[groupIndex]
		all[index] = append(all[index], pod.Metadata.UID)
	}
	return all
}

// hasGroups waits until so many groups are asked for of the set and so many are ready.
func (l *loop) hasGroups(t *testing.T, want, ready int) {
	t.Helper()
	began := time.Now()
	process.WaitFor(t, nil, fmt.Sprintf("%d groups", want), obeyedWithin, func() error {
		var set struct {
			Spec   struct{ Replicas int }
			Status struct{ ReadyReplicas int }
		}
		err := l.Do("GET", groupSets+"/"+groupSet, nil, &set)
		if err == nil && (set.Spec.Replicas != want || set.Status.ReadyReplicas != ready) {
			err = fmt.Errorf("%d are asked for, %d ready", set.Spec.Replicas, set.Status.ReadyReplicas)
		}
		return err
	})
	t.Logf("%d groups after %v", want, time.Since(began).Round(100*time.Millisecond))
}

// addresses are those of a group's servers.
func (l *loop) addresses(t *testing.T, index string) (all []string) {
	t.Helper()
	for _, pod := range l.Pods(t, "tandem/role=decode,"+groupIndex+"="+index) {
		all = append(all, pod.Status.PodIP+":8000")
	}
	return all
}

// drain waits until these decode servers drain, and no others, while all groups are still
// asked for.
func (l *loop) drain(t *testing.T, which []string) {
	t.Helper()
	process.WaitFor(t, nil, "the highest group to drain", obeyedWithin, func() error {
		var drain []string
		for id, drains := range l.servers(t) {
			if drains {
				drain = append(drain, id)
			}
		}
		slices.Sort(drain)
		slices.Sort(which)
		if !slices.Equal(drain, which) {
			return fmt.Errorf("%v drain, not %v", drain, which)
		}
		return nil
	})
	t.Logf("%v drain", which)
	if n := len(l.groups(t)["2"]); n != 2 {
		t.Errorf("%d pods of the highest group were left when it drained", n)
	}
}

// servers says of each decode server of a gateway whether it drains.
func (l *loop) servers(t *testing.T) map[string]bool {
	t.Helper()
	servers, err := deployed.Servers(l.admin)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]bool)
	for _, s := range servers {
		if s.Role == "decode" {
			all[s.ID] = s.Draining
		}
	}
	return all
}
