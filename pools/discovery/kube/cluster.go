package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/tandem-gateway/tandem/pools"
)

// Config says which objects of a cluster are servers; its zero value is
// none. Their labels and annotations describe them: see readAnnotations.
type Config struct {
	Pods           string   // label selector of pods
	Services       string   // label selector of Services, whose EndpointSlices are followed
	InferencePools []string // names of InferencePools, which select pods
	Namespace      string   // of them all; empty is the gateway's own
	RackLabel      string   // label of nodes that names their rack
	Connector      string   // of servers that name none; empty: as the engine reports
	Rules          string   // API group of InferenceObjectives and InferenceModelRewrites; empty: none are followed
	Kubeconfig     string   // file, for a gateway outside of the cluster
}

// Default returns the configuration to start from: nothing is looked for.
func Default() Config {
	return Config{RackLabel: "topology.kubernetes.io/rack"}
}

// Enabled reports whether there is anything to look for.
func (c Config) Enabled() bool {
	return c.Pods != "" || c.Services != "" || len(c.InferencePools) > 0 || c.Rules != ""
}

// Validate reports what is wrong with the configuration, nil if nothing.
func (c Config) Validate() error {
	for name, selector := range map[string]string{"kubernetes-pods": c.Pods, "kubernetes-services": c.Services} {
		if _, err := labels.Parse(selector); err != nil {
			return fmt.Errorf("%s %q: %w", name, selector, err)
		}
	}
	if c.Rules != "" && c.Rules != LLMDGroup && c.Rules != ExtensionGroup {
		return fmt.Errorf("inference-objectives %q: want %s or %s", c.Rules, LLMDGroup, ExtensionGroup)
	}
	if known := pools.Connectors(); c.Connector != "" && !slices.Contains(known, c.Connector) {
		return fmt.Errorf("kubernetes-connector %q: want one of %s", c.Connector, strings.Join(known, ", "))
	}
	return nil
}

// settleTime joins changes that come together, such as those of a rollout.
const settleTime = 20 * time.Millisecond

// namespaceFile is where Kubernetes gives a pod its namespace.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// Cluster follows pods, EndpointSlices and InferencePools and says which servers
// they are, and which rules there are for requests. It only gets, lists and watches, save where Weigh is used. While the API
// server is away, the last servers stay.
type Cluster struct {
	cfg     Config
	found   func([]pools.Spec)
	log     *slog.Logger
	changed chan struct{} // an informer has a change

	reportRules func(Rules) // nil: to nobody

	pods, slices, pools, nodes cache.SharedIndexInformer // nil where not asked for
	objectives, rewrites       cache.SharedIndexInformer // likewise

	podCosts podCosts

	mu       sync.Mutex         // guards problems
	problems map[string]problem // by resource
}

// New prepares to report the servers to found, all of them each time.
func New(cfg Config, found func([]pools.Spec), log *slog.Logger) (*Cluster, error) {
	k := &Cluster{
		cfg: cfg, found: found, log: log, changed: make(chan struct{}, 1), problems: make(map[string]problem),
		podCosts: podCosts{changed: make(chan struct{}, 1)},
	}
	access, err := k.access()
	if err != nil {
		return nil, fmt.Errorf("access to Kubernetes: %w", err)
	}
	if k.podCosts.client, err = dynamic.NewForConfig(rest.CopyConfig(access)); err != nil {
		return nil, fmt.Errorf("client of Kubernetes: %w", err)
	}
	access.Wrap(func(next http.RoundTripper) http.RoundTripper { return notingTransport{k, next} })
	client, err := dynamic.NewForConfig(access)
	if err != nil {
		return nil, fmt.Errorf("client of Kubernetes: %w", err)
	}
	return k, k.followAll(client)
}

// followAll prepares an informer for each kind of object that is asked for.
func (k *Cluster) followAll(client dynamic.Interface) error {
	cfg := k.cfg
	group := func(group, resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}
	}
	var errs []error
	follow := func(resource schema.GroupVersionResource, namespace, selector string, trim cache.TransformFunc) cache.SharedIndexInformer {
		informer, err := k.follow(client.Resource(resource).Namespace(namespace), selector, trim)
		errs = append(errs, err)
		return informer
	}
	if cfg.Pods != "" || len(cfg.InferencePools) > 0 {
		selector := cfg.Pods
		if len(cfg.InferencePools) > 0 {
			selector = "" // which pods they select is not known before, and may change
		}
		k.pods = follow(group("", "pods"), cfg.Namespace, selector, trimPod)
	}
	if cfg.Services != "" {
		k.slices = follow(group("discovery.k8s.io", "endpointslices"), cfg.Namespace, cfg.Services, into[discoveryv1.EndpointSlice])
	}
	if len(cfg.InferencePools) > 0 {
		k.pools = follow(group("inference.networking.k8s.io", "inferencepools"), cfg.Namespace, "", into[inferencePool])
	}
	k.nodes = follow(group("", "nodes"), "", "", trimNode)
	if cfg.Rules != "" {
		errs = append(errs, k.followRules(client))
	}
	return errors.Join(errs...)
}

// access finds the API server, and the namespace where none is configured.
func (k *Cluster) access() (*rest.Config, error) {
	if k.cfg.Kubeconfig != "" {
		load := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: k.cfg.Kubeconfig}, nil)
		if k.cfg.Namespace == "" {
			namespace, _, err := load.Namespace()
			if err != nil {
				return nil, err
			}
			k.cfg.Namespace = namespace
		}
		return load.ClientConfig()
	}
	if k.cfg.Namespace == "" {
		namespace, err := os.ReadFile(namespaceFile)
		if err != nil {
			return nil, fmt.Errorf("namespace of the gateway: %w", err)
		}
		k.cfg.Namespace = strings.TrimSpace(string(namespace))
	}
	return rest.InClusterConfig()
}

// follow returns an informer that signals changed.
func (k *Cluster) follow(from dynamic.ResourceInterface, selector string, trim cache.TransformFunc) (cache.SharedIndexInformer, error) {
	// Not dynamicinformer, which brings the typed clients of every API with it.
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = selector
			return from.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selector
			w, err := from.Watch(ctx, o)
			if err != nil && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
				// Only the text: after a refused connection that it recognizes,
				// client-go sleeps up to 30 s whatever the context's state.
				err = errors.New(err.Error())
			}
			return w, err
		},
	}, &unstructured.Unstructured{}, 0, cache.Indexers{})
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { k.notifyChange() },
		UpdateFunc: func(any, any) { k.notifyChange() },
		DeleteFunc: func(any) { k.notifyChange() },
	})
	return informer, errors.Join(err, informer.SetTransform(trim))
}

func (k *Cluster) notifyChange() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// Run follows the cluster until the context ends.
func (k *Cluster) Run(ctx context.Context) {
	// What client-go logs of its retries is for debugging; recordAnswer logs the rest.
	informed := klog.NewContext(ctx, logr.Discard())
	var informers sync.WaitGroup
	defer informers.Wait()
	var awaited []cache.InformerSynced // what servers are made of
	for _, informer := range []cache.SharedIndexInformer{k.pods, k.slices, k.pools} {
		if informer != nil {
			informers.Go(func() { informer.RunWithContext(informed) })
			awaited = append(awaited, informer.HasSynced)
		}
	}
	// Nodes only give the topology, and may be forbidden; rules may not even be defined.
	for _, informer := range []cache.SharedIndexInformer{k.nodes, k.objectives, k.rewrites} {
		if informer != nil {
			informers.Go(func() { informer.RunWithContext(informed) })
		}
	}
	if k.cfg.Rules != "" {
		informers.Go(func() { k.awaitRules(ctx.Done()) })
	}
	if !cache.WaitForCacheSync(ctx.Done(), awaited...) {
		return // the context has ended
	}
	informers.Go(func() { k.patchCosts(ctx) })
	var last []pools.Spec
	var lastRules Rules
	var wrong map[string]error
	var missing []string
	for first := true; ; first = false {
		v := k.view()
		specs, problems := v.specs()
		k.logProblems(wrong, problems)
		wrong = problems
		missing = k.logMissingPools(missing, v)
		if first || !reflect.DeepEqual(specs, last) {
			k.found(specs)
			last = specs
		}
		if k.rulesKnown() {
			if rules := k.rules(); !reflect.DeepEqual(rules, lastRules) {
				k.reportRules(rules)
				lastRules = rules
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-k.changed:
		}
		if !pools.Pause(ctx, settleTime) {
			return
		}
	}
}

// logProblems logs what was not wrong before.
func (k *Cluster) logProblems(before, now map[string]error) {
	for object, err := range now {
		if was := before[object]; was == nil || was.Error() != err.Error() {
			k.log.Warn("not a server because of its labels", "object", object, "error", err.Error())
		}
	}
}

// logMissingPools logs which InferencePools are named and are not there, where they were not missing before, and
// returns them.
func (k *Cluster) logMissingPools(before []string, v view) (missing []string) {
	missing = k.missingPools(v)
	for _, name := range missing {
		if !slices.Contains(before, name) {
			k.log.Warn("there is no InferencePool of this name: none of its pods is a server", "pool", name, "namespace", k.cfg.Namespace)
		}
	}
	return missing
}

// MissingPools are the InferencePools that are named and are not there, once servers were reported.
func (k *Cluster) MissingPools() []string { return k.missingPools(k.view()) }

func (k *Cluster) missingPools(v view) (missing []string) {
	for _, name := range k.cfg.InferencePools {
		if !slices.ContainsFunc(v.pools, func(p *inferencePool) bool { return p.Name == name }) {
			missing = append(missing, name)
		}
	}
	return missing
}

// view reads the informers.
func (k *Cluster) view() view {
	v := view{
		pods:      listed[*corev1.Pod](k.pods),
		slices:    listed[*discoveryv1.EndpointSlice](k.slices),
		nodes:     make(map[string]labels.Set),
		rackLabel: k.cfg.RackLabel,
		connector: k.cfg.Connector,
	}
	for _, node := range listed[*corev1.Node](k.nodes) {
		v.nodes[node.Name] = node.Labels
	}
	for _, p := range listed[*inferencePool](k.pools) {
		if slices.Contains(k.cfg.InferencePools, p.Name) {
			v.pools = append(v.pools, p)
		}
	}
	if k.cfg.Pods != "" {
		v.selector, _ = labels.Parse(k.cfg.Pods) // Validate has parsed it
	}
	return v
}

func listed[T any](informer cache.SharedIndexInformer) []T {
	if informer == nil {
		return nil
	}
	var all []T
	for _, object := range informer.GetStore().List() {
		all = append(all, object.(T))
	}
	return all
}

// into is a transform that keeps objects as the type that they are read as.
func into[T any](object any) (any, error) {
	raw, isRaw := object.(*unstructured.Unstructured)
	if !isRaw {
		return object, nil // transformed before, or a tombstone
	}
	typed := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(raw.Object, typed); err != nil {
		return nil, fmt.Errorf("%s %s: %w", raw.GetKind(), raw.GetName(), err)
	}
	return typed, nil
}

// trimPod keeps what is read of a pod, a small part of it.
func trimPod(object any) (any, error) {
	object, err := into[corev1.Pod](object)
	if pod, is := object.(*corev1.Pod); is {
		pod.ManagedFields, pod.OwnerReferences = nil, nil
		pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName}
		pod.Status = corev1.PodStatus{Phase: pod.Status.Phase, PodIP: pod.Status.PodIP, Conditions: pod.Status.Conditions}
	}
	return object, err
}

// trimNode keeps name and labels.
func trimNode(object any) (any, error) {
	object, err := into[corev1.Node](object)
	if node, is := object.(*corev1.Node); is {
		*node = corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: node.Labels, ResourceVersion: node.ResourceVersion}}
	}
	return object, err
}
