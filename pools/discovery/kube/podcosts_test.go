package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestMarkPatch_GivesPodsTheirCostAndTakesItBack(t *testing.T) {
	const (
		given = `{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"-1","tandem/leaving":"-1"}}}`
		taken = `{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":null,"tandem/leaving":null}}}`
	)
	for _, of := range []struct {
		name  string
		costs map[string]int
		has   map[string]string
		want  string
	}{
		{"it leaves", map[string]int{"pod": -1}, nil, given},
		{"it has that cost", map[string]int{"pod": -1}, map[string]string{ownCostAnnotation: "-1", costAnnotation: "-1"}, ""},
		{"it has another", map[string]int{"pod": -1}, map[string]string{ownCostAnnotation: "-2", costAnnotation: "-2"}, given},
		{"it stays after all", nil, map[string]string{ownCostAnnotation: "-1", costAnnotation: "-1"}, taken},
		{"its owner gave it a cost", nil, map[string]string{costAnnotation: "100"}, ""},
		{"another leaves", map[string]int{"other": -1}, nil, ""},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", Annotations: of.has}}
		if got := string(costPatch(pod, of.costs)); got != of.want {
			t.Errorf("%s: %s, want %s", of.name, got, of.want)
		}
	}
	grouped := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod-3-1", Labels: map[string]string{groupKey: "key"}}}
	if got := string(costPatch(grouped, map[string]int{"key": -1})); got != given {
		t.Errorf("a pod of a group that leaves: %s", got)
	}
}
