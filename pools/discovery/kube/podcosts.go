package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// costAnnotation makes a ReplicaSet choose which pod to delete first: the one of the lowest cost;
// pods without it cost 0. ownCostAnnotation marks a cost that this gateway set and may remove.
const (
	costAnnotation    = "controller.kubernetes.io/pod-deletion-cost"
	ownCostAnnotation = "tandem/leaving"
)

// patchTimeout bounds one change of a pod.
const patchTimeout = 5 * time.Second

// podCosts are the costs that pods should have.
type podCosts struct {
	client  dynamic.Interface
	changed chan struct{}

	mu    sync.Mutex // guards costs
	costs map[string]int
}

// SetPodCosts sets the deletion cost of the pods of units; all other pods have none, and a cost
// that they had is removed. Changing a pod needs the right to patch pods. What fails is tried
// again at the next call.
func (k *Cluster) SetPodCosts(costs map[string]int) {
	k.podCosts.mu.Lock()
	k.podCosts.costs = costs
	k.podCosts.mu.Unlock()
	select {
	case k.podCosts.changed <- struct{}{}:
	default:
	}
}

// patchCosts gives pods their costs until the context ends.
func (k *Cluster) patchCosts(ctx context.Context) {
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.podCosts.changed:
		}
		k.podCosts.mu.Lock()
		costs := k.podCosts.costs
		k.podCosts.mu.Unlock()
		var failed error
		for _, pod := range listed[*corev1.Pod](k.pods) {
			patch := costPatch(pod, costs)
			if patch == nil {
				continue
			}
			if err := k.patch(ctx, pod.Name, patch); err != nil {
				failed = err
			}
		}
		if failed != nil && !failing && ctx.Err() == nil {
			k.log.Warn("cannot set or remove the deletion cost of pods: pods other than the drained ones may be deleted first", "error", failed.Error())
		}
		failing = failed != nil
	}
}

// costPatch is the merge patch that gives a pod its cost, nil if it has it.
func costPatch(pod *corev1.Pod, costs map[string]int) []byte {
	cost, drains := costs[cmp.Or(pod.Labels[groupKey], pod.Name)]
	is := pod.Annotations[ownCostAnnotation]
	var want any // null takes an annotation away
	switch {
	case drains && is == strconv.Itoa(cost), !drains && is == "":
		return nil
	case drains:
		want = strconv.Itoa(cost)
	}
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{ // strings always encode
		"annotations": map[string]any{costAnnotation: want, ownCostAnnotation: want},
	}})
	return patch
}

func (k *Cluster) patch(ctx context.Context, pod string, patch []byte) error {
	ctx, cancel := context.WithTimeout(ctx, patchTimeout)
	defer cancel()
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	_, err := k.podCosts.client.Resource(pods).Namespace(k.cfg.Namespace).Patch(ctx, pod, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
