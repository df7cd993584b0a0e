package kube

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/tandem-gateway/tandem/pools"
)

// TestView_WhatObjectsBecomeWhichServers reads testdata/servers.txt, where
// each case is a list of manifests and the servers that they are.
func TestView_WhatObjectsBecomeWhichServers(t *testing.T) {
	datadriven.RunTest(t, "testdata/servers.txt", func(t *testing.T, d *datadriven.TestData) string {
		view := view{nodes: map[string]labels.Set{}, rackLabel: "topology.example.com/rack"}
		for _, arg := range d.CmdArgs {
			switch arg.Key {
			case "pods":
				var err error
				if view.selector, err = labels.Parse(arg.SingleVal(t)); err != nil {
					t.Fatal(err)
				}
			case "connector":
				view.connector = arg.SingleVal(t)
			}
		}
		for _, manifest := range strings.Split(d.Input, "---\n") {
			addManifest(t, &view, []byte(manifest))
		}
		specs, problems := view.specs()
		var b strings.Builder
		for _, s := range specs {
			fmt.Fprintln(&b, describe(s))
		}
		var wrong []string
		for object, err := range problems {
			text, _, _ := strings.Cut(err.Error(), " (known") // connectors are added elsewhere
			wrong = append(wrong, object+": "+text)
		}
		slices.Sort(wrong)
		for _, line := range wrong {
			fmt.Fprintln(&b, line)
		}
		return b.String()
	})
}

func addManifest(t *testing.T, view *view, manifest []byte) {
	t.Helper()
	read := func(into any) {
		if err := yaml.UnmarshalStrict(manifest, into); err != nil {
			t.Fatalf("%v in\n%s", err, manifest)
		}
	}
	var kind struct{ Kind string }
	if err := yaml.Unmarshal(manifest, &kind); err != nil {
		t.Fatal(err)
	}
	switch kind.Kind {
	case "Pod":
		pod := new(corev1.Pod)
		read(pod)
		view.pods = append(view.pods, pod)
	case "EndpointSlice":
		slice := new(discoveryv1.EndpointSlice)
		read(slice)
		view.slices = append(view.slices, slice)
	case "Node":
		node := new(corev1.Node)
		read(node)
		view.nodes[node.Name] = node.Labels
	case "InferencePool":
		pool := new(inferencePool)
		if err := yaml.Unmarshal(manifest, pool); err != nil { // only some fields are read
			t.Fatal(err)
		}
		view.pools = append(view.pools, pool)
	default:
		t.Fatalf("kind %q in\n%s", kind.Kind, manifest)
	}
}

func describe(s pools.Spec) string {
	text := fmt.Sprintf("%s %s %s unit=%s", s.ID(), s.Role, cmp.Or(s.Connector, "as-told"), s.Unit)
	for _, part := range []struct{ name, value string }{
		{"weights", s.Weights}, {"layout", s.Layout}, {"variant", s.Variant}, {"kv", s.KVAddress}, {"orca", s.ORCA}, {"metrics", s.Metrics},
		{"host", s.Host}, {"rack", s.Rack}, {"zone", s.Zone}, {"events", s.Events}, {"replay", s.Replay},
	} {
		if part.value != "" {
			text += " " + part.name + "=" + part.value
		}
	}
	if s.Native {
		text += " native"
	}
	if s.Group != "" {
		text += " group=" + s.Group
	}
	if s.Ordinal != nil {
		text += fmt.Sprintf(" ordinal=%d", *s.Ordinal)
	}
	if s.EventRanks > 0 {
		text += fmt.Sprintf(" event-ranks=%d", s.EventRanks)
	}
	if s.Drain {
		text += " draining"
	}
	return text
}

func TestKubernetesConfig_ABrokenSelectorIsRefused(t *testing.T) {
	for _, c := range []Config{{Pods: "a in"}, {Services: "=x"}} {
		if c.Validate() == nil {
			t.Errorf("%+v is valid", c)
		}
	}
	if err := (Config{Pods: "tandem/role,app in (a,b)"}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestNewKubernetes_SaysWhatIsMissingOutsideOfACluster(t *testing.T) {
	if _, err := os.Stat(namespaceFile); err == nil {
		t.Skip("this runs in a pod")
	}
	_, err := New(Config{Pods: "a"}, nil, nil)
	if err == nil || !strings.Contains(err.Error(), "namespace of the gateway") {
		t.Errorf("error %v", err)
	}
}

// Numbers of ports and ranks are taken to their last value, in each annotation that has one.
func TestReadAnnotations_NumbersAreCheckedAtTheirEdges(t *testing.T) {
	for _, key := range []string{"tandem/dp-size", "tandem/events", "tandem/replay", "tandem/kv", "tandem/orca", "tandem/metrics", "tandem/event-ranks", "tandem/ports", "llm-d.ai/active-ports"} {
		for value, ok := range map[string]bool{"": true, "1": true, "65535": true, "0": false, "65536": false, "-1": false, "x": false} {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: map[string]string{key: value}}}
			if _, err := readAnnotations(pod); (err == nil) != ok {
				t.Errorf("%s %q: %v", key, value, err)
			}
		}
	}
	if ports, err := portList(" 8000, 8001,"); err != nil || !slices.Equal(ports, []int{8000, 8001}) {
		t.Errorf("%v, %v", ports, err)
	}
}

// Servers come in one order, whatever that of the objects, and each once.
func TestView_ServersComeInOneOrder(t *testing.T) {
	all := view{selector: labels.Everything()}
	for _, ip := range []string{"10.0.0.3", "10.0.0.1", "10.0.0.2", "10.0.0.1"} {
		all.pods = append(all.pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p" + ip}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip}})
	}
	specs, problems := all.specs()
	var ids []string
	for _, s := range specs {
		ids = append(ids, s.ID())
	}
	if want := []string{"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"}; !slices.Equal(ids, want) || len(problems) > 0 {
		t.Errorf("%v, %v", ids, problems)
	}
}

// The connector of pods that name none is one that there is, or none.
func TestConfig_TheConnectorIsAKnownOne(t *testing.T) {
	for connector, ok := range map[string]bool{"": true, "llmd-sidecar": true, "sidecar": false} {
		cfg := Default()
		cfg.Connector = connector
		if err := cfg.Validate(); (err == nil) != ok {
			t.Errorf("%q: %v", connector, err)
		}
	}
}

// What servers a pod adds costs the same whatever the number of pods: each change of one looks at all of them.
func TestView_AllocatesForEachPodAlike(t *testing.T) {
	allocations := func(pods int) float64 {
		v := view{selector: labels.Everything()}
		for i := range pods {
			v.pods = append(v.pods, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pod-", i*7919%pods), Labels: labels.Set{"tandem/role": "decode"}},
				Status: corev1.PodStatus{
					PodIP: fmt.Sprintf("10.0.%d.%d", i/250, i%250), Phase: corev1.PodRunning,
					Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
				},
			})
		}
		return testing.AllocsPerRun(5, func() {
			if specs, problems := v.specs(); len(specs) != pods || len(problems) > 0 {
				t.Fatalf("%d servers of %d pods: %v", len(specs), pods, problems)
			}
		}) / float64(pods)
	}
	few, many := allocations(100), allocations(3200)
	if many > few+1 {
		t.Errorf("%.1f allocations for each of 100 pods, %.1f for each of 3,200", few, many)
	}
}
