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

// costAnnotation tells a ReplicaSet which pod to delete first: the one of the lowest cost;
// pods without it cost 0. markAnnotation says that the cost is ours to take back.
const (
	costAnnotation = "controller.kubernetes.io/pod-deletion-cost"
	markAnnotation = "tandem/leaving"
)

// markTime bounds one change of a pod.
const markTime = 5 * time.Second

// marks are the costs that pods should have.
type marks struct {
	client  dynamic.Interface
	changed chan struct{}

	mu    sync.Mutex // guards costs
	costs map[string]int
}

// Weigh says what the pods of units cost to lose; those of all others cost nothing, and
// what was said of them before is taken back. Where that changes a pod it wants the right to
// patch it. What fails is tried again at the next call.
func (k *Cluster) Weigh(costs map[string]int) {
	k.marks.mu.Lock()
	k.marks.costs = costs
	k.marks.mu.Unlock()
	select {
	case k.marks.changed <- struct{}{}:
	default:
	}
}

// mark gives pods their costs until the context ends.
func (k *Cluster) mark(ctx context.Context) {
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.marks.changed:
		}
		k.marks.mu.Lock()
		costs := k.marks.costs
		k.marks.mu.Unlock()
		var failed error
		for _, pod := range listed[*corev1.Pod](k.pods) {
			patch := markPatch(pod, costs)
			if patch == nil {
				continue
			}
			if err := k.patch(ctx, pod.Name, patch); err != nil {
				failed = err
			}
		}
		if failed != nil && !failing && ctx.Err() == nil {
			k.log.Warn("pods that leave next cannot be marked, or marks not be taken back: others may be deleted first", "error", failed.Error())
		}
		failing = failed != nil
	}
}

// markPatch is the merge patch that gives a pod its cost, nil if it has it.
func markPatch(pod *corev1.Pod, costs map[string]int) []byte {
	cost, leaves := costs[cmp.Or(pod.Labels[groupKey], pod.Name)]
	is := pod.Annotations[markAnnotation]
	var want any // null takes an annotation away
	switch {
	case leaves && is == strconv.Itoa(cost), !leaves && is == "":
		return nil
	case leaves:
		want = strconv.Itoa(cost)
	}
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{ // strings always encode
		"annotations": map[string]any{costAnnotation: want, markAnnotation: want},
	}})
	return patch
}

func (k *Cluster) patch(ctx context.Context, pod string, patch []byte) error {
	ctx, cancel := context.WithTimeout(ctx, markTime)
	defer cancel()
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	_, err := k.marks.client.Resource(pods).Namespace(k.cfg.Namespace).Patch(ctx, pod, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
