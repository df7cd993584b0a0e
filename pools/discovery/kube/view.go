package kube

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tandem-gateway/tandem/pools"
)

// view is what the API server returned last.
type view struct {
	pods      []*corev1.Pod
	slices    []*discoveryv1.EndpointSlice
	nodes     map[string]labels.Set // by name
	pools     []*inferencePool
	selector  labels.Selector // of pods, beside what the pools select; nil selects none
	rackLabel string          // of nodes
	connector string          // of servers that name none
}

// inferencePool is what is read of an InferencePool of the Gateway API Inference
// Extension, inference.networking.k8s.io/v1. Each target port of a selected pod is
// a server of its own.
type inferencePool struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		TargetPorts []struct {
			Number int `json:"number"`
		} `json:"targetPorts"`
	} `json:"spec"`
}

// specs returns the servers of the view, by ID, and what is wrong with pods and
// EndpointSlices that should be servers and are not, by their names. Several objects may
// have one address: a pod that leaves and the next one that got its IP, endpoints in two
// EndpointSlices. Pods count before endpoints, of either what takes requests before what does
// not, and then the newer pod before the older one.
func (v view) specs() (specs []pools.Spec, problems map[string]error) {
	problems = make(map[string]error)
	check := func(object string, found []pools.Spec, err error) []pools.Spec {
		for i := 0; i < len(found) && err == nil; i++ {
			err = found[i].Validate()
		}
		if err != nil {
			problems[object] = err
			return nil
		}
		return found
	}
	newer := func(a, b *corev1.Pod) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	}
	for _, pod := range slices.SortedFunc(slices.Values(v.pods), newer) {
		if ports, selected := v.selects(pod); selected {
			found, err := v.podSpecs(pod, ports)
			specs = append(specs, check("pod/"+pod.Name, found, err)...)
		}
	}
	var endpoints []pools.Spec
	inIPv4 := v.podsInIPv4()
	byName := func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) }
	for _, slice := range slices.SortedFunc(slices.Values(v.slices), byName) {
		found, err := v.sliceSpecs(slice, inIPv4)
		endpoints = append(endpoints, check("endpointslice/"+slice.Name, found, err)...)
	}
	for _, of := range [][]pools.Spec{specs, endpoints} {
		slices.SortStableFunc(of, drainingLast)
	}
	specs = append(specs, endpoints...)
	return byID(specs), problems
}

// byID returns servers in the order of their IDs, of those with one ID the first. An ID is made once for each: a sort of
// thousands asks for each a dozen times.
func byID(specs []pools.Spec) []pools.Spec {
	type numbered struct {
		id string
		at int
	}
	order := make([]numbered, len(specs))
	for i := range specs {
		order[i] = numbered{specs[i].ID(), i}
	}
	slices.SortFunc(order, func(a, b numbered) int { return cmp.Or(strings.Compare(a.id, b.id), a.at-b.at) })
	sorted := make([]pools.Spec, 0, len(specs))
	for i, o := range order {
		if i == 0 || o.id != order[i-1].id {
			sorted = append(sorted, specs[o.at])
		}
	}
	return sorted
}

func drainingLast(a, b pools.Spec) int {
	switch {
	case a.Drain == b.Drain:
		return 0
	case a.Drain:
		return 1
	}
	return -1
}

// selects reports whether a pod should be a server, and which ports a pool
// gives it; none leaves that to the pod.
func (v view) selects(pod *corev1.Pod) (ports []int, selected bool) {
	has := labels.Set(pod.Labels)
	for _, p := range v.pools {
		if len(p.Spec.Selector.MatchLabels) == 0 || !labels.SelectorFromSet(p.Spec.Selector.MatchLabels).Matches(has) {
			continue
		}
		selected = true
		for _, port := range p.Spec.TargetPorts {
			if !slices.Contains(ports, port.Number) { // pools may overlap
				ports = append(ports, port.Number)
			}
		}
	}
	return ports, selected || v.selector != nil && v.selector.Matches(has)
}

// podSpecs returns the servers of a pod: none before it has an address and once it
// has ended. A pod that is not ready or on its way out takes no new request.
func (v view) podSpecs(pod *corev1.Pod, poolPorts []int) ([]pools.Spec, error) {
	if pod.Status.PodIP == "" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil, nil
	}
	sign, err := readAnnotations(pod)
	if err != nil {
		return nil, err
	}
	sign.Connector = cmp.Or(sign.Connector, v.connector)
	sign.locate(pod.Spec.NodeName, v.nodes[pod.Spec.NodeName], v.rackLabel)
	sign.Drain = sign.Drain || !podReady(pod) || pod.DeletionTimestamp != nil
	return sign.specs(pod.Status.PodIP, sign.portsAmong(poolPorts)), nil
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// sliceSpecs returns the servers of an EndpointSlice: of each endpoint the ports
// whose name begins with "http", or all if none is called so. What is said of them
// are the labels of the Service, which Kubernetes copies to its slices. Of the pods that
// are in IPv4 slices of the Service too, as those of one with both families are, the IPv6 address is
// left out: it is the same engine.
func (v view) sliceSpecs(slice *discoveryv1.EndpointSlice, inIPv4 map[podOf]bool) ([]pools.Spec, error) {
	sign, err := readAnnotations(slice)
	if err != nil {
		return nil, err
	}
	sign.Connector = cmp.Or(sign.Connector, v.connector)
	ports := slicePorts(slice)
	var all []pools.Spec
	for _, endpoint := range slice.Endpoints {
		on := sign
		node := deref(endpoint.NodeName)
		on.Zone = cmp.Or(on.Zone, deref(endpoint.Zone))
		on.locate(node, v.nodes[node], v.rackLabel)
		serving := endpoint.Conditions.Serving
		if serving == nil {
			serving = endpoint.Conditions.Ready
		}
		ready := serving == nil || *serving // the API defines unknown as ready
		on.Drain = on.Drain || !ready || deref(endpoint.Conditions.Terminating)
		pod := endpoint.TargetRef
		if pod != nil && slice.AddressType == discoveryv1.AddressTypeIPv6 && inIPv4[podOf{slice.Labels[discoveryv1.LabelServiceName], pod.Name}] {
			continue
		}
		for _, address := range endpoint.Addresses {
			on.Unit = address
			if pod != nil {
				on.Unit = pod.Name
			}
			if on.Group != "" {
				on.Group = on.Unit
			}
			all = append(all, on.specs(address, sign.portsAmong(ports))...)
		}
	}
	return all, nil
}

// podOf is a pod of a Service, by their names.
type podOf struct{ service, name string }

// podsInIPv4 are the pods of which an EndpointSlice of the Service has an IPv4 address.
func (v view) podsInIPv4() map[podOf]bool {
	pods := make(map[podOf]bool)
	for _, slice := range v.slices {
		if slice.AddressType != discoveryv1.AddressTypeIPv4 {
			continue
		}
		for _, endpoint := range slice.Endpoints {
			if endpoint.TargetRef != nil {
				pods[podOf{slice.Labels[discoveryv1.LabelServiceName], endpoint.TargetRef.Name}] = true
			}
		}
	}
	return pods
}

// slicePorts are the ports of a slice, each once: two ports of a Service may lead to one of its pods.
func slicePorts(slice *discoveryv1.EndpointSlice) []int {
	var named, all []int
	for _, p := range slice.Ports {
		if p.Port == nil {
			continue
		}
		port := int(*p.Port)
		if !slices.Contains(all, port) {
			all = append(all, port)
		}
		if strings.HasPrefix(deref(p.Name), "http") && !slices.Contains(named, port) {
			named = append(named, port)
		}
	}
	if len(named) > 0 {
		return named
	}
	return all
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
