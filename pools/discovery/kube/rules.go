package kube

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
)

// The API groups of InferenceObjectives and InferenceModelRewrites, in version v1alpha2: llm-d's
// (llm-d-router config/crd/bases, August 2026), and that of the Inference Extension before 1.6, from
// which they moved.
const (
	LLMDGroup      = "llm-d.ai"
	ExtensionGroup = "inference.networking.x-k8s.io"
)

// Rules are what InferenceObjectives and InferenceModelRewrites say of requests.
type Rules struct {
	// Priorities are those of requests that name an InferenceObjective: the higher is served first,
	// 0 is that of requests that name none.
	Priorities map[string]int
	// Rewrites are sorted by Model; there is one of each.
	Rewrites []Rewrite
}

// Rewrite says which models requests for a model go to.
type Rewrite struct {
	Model   string // "": every model that no other rewrite names
	Targets []RewriteTarget
}

// RewriteTarget is a model, and its part of the requests.
type RewriteTarget struct {
	Model  string
	Weight int // above 0
}

// poolRef names the InferencePool that an object is for, of its own namespace.
type poolRef struct {
	Name string `json:"name"`
}

// inferenceObjective is what is read of an InferenceObjective.
type inferenceObjective struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		PoolRef  poolRef `json:"poolRef"`
		Priority int     `json:"priority"`
	} `json:"spec"`
}

// inferenceModelRewrite is what is read of an InferenceModelRewrite.
type inferenceModelRewrite struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		PoolRef poolRef       `json:"poolRef"`
		Rules   []rewriteRule `json:"rules"`
	} `json:"spec"`
}

// rewriteRule is one of an InferenceModelRewrite: without matches it is for every model.
type rewriteRule struct {
	Matches []struct {
		Model struct {
			Value string `json:"value"`
		} `json:"model"`
	} `json:"matches"`
	Targets []rewriteTarget `json:"targets"`
}

type rewriteTarget struct {
	ModelRewrite string `json:"modelRewrite"`
	Weight       int    `json:"weight"` // 0: none is given
}

// ReportRules has the rules of the cluster reported, each time all of them, where the configuration
// names their group. Call it before Run.
func (k *Cluster) ReportRules(report func(Rules)) { k.reportRules = report }

// followRules prepares the informers of what rules are made of.
func (k *Cluster) followRules(client dynamic.Interface) (err error) {
	resource := func(name string) dynamic.ResourceInterface {
		return client.Resource(schema.GroupVersionResource{Group: k.cfg.Rules, Version: "v1alpha2", Resource: name}).Namespace(k.cfg.Namespace)
	}
	if k.objectives, err = k.follow(resource("inferenceobjectives"), "", into[inferenceObjective]); err != nil {
		return err
	}
	k.rewrites, err = k.follow(resource("inferencemodelrewrites"), "", into[inferenceModelRewrite])
	return err
}

// rulesKnown reports whether the API server has said which rules there are.
func (k *Cluster) rulesKnown() bool {
	return k.reportRules != nil && k.objectives != nil && k.objectives.HasSynced() && k.rewrites.HasSynced()
}

// awaitRules has Run look at the rules once all are there: their kinds may be defined long after the
// servers are found, or never.
func (k *Cluster) awaitRules(stop <-chan struct{}) {
	if cache.WaitForCacheSync(stop, k.objectives.HasSynced, k.rewrites.HasSynced) {
		k.notifyChange()
	}
}

// rules reads the informers. Of several rewrites of a model the oldest object's counts, and in it the
// first, as the definition of InferenceModelRewrite has it.
func (k *Cluster) rules() Rules {
	r := Rules{Priorities: make(map[string]int)}
	for _, o := range listed[*inferenceObjective](k.objectives) {
		if k.concerns(o.Spec.PoolRef) {
			r.Priorities[o.Name] = o.Spec.Priority
		}
	}
	rewrites := listed[*inferenceModelRewrite](k.rewrites)
	slices.SortFunc(rewrites, func(a, b *inferenceModelRewrite) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	seen := make(map[string]bool)
	for _, object := range rewrites {
		if !k.concerns(object.Spec.PoolRef) {
			continue
		}
		for _, rule := range object.Spec.Rules {
			for _, model := range rule.models() {
				if targets := rule.targets(); !seen[model] && len(targets) > 0 {
					seen[model] = true
					r.Rewrites = append(r.Rewrites, Rewrite{Model: model, Targets: targets})
				}
			}
		}
	}
	slices.SortFunc(r.Rewrites, func(a, b Rewrite) int { return strings.Compare(a.Model, b.Model) })
	return r
}

// concerns reports whether an object is of a pool whose servers these are: any of the namespace where
// no pool is configured.
func (k *Cluster) concerns(of poolRef) bool {
	return len(k.cfg.InferencePools) == 0 || slices.Contains(k.cfg.InferencePools, of.Name)
}

// models are those that a rule is for, "" for every one.
func (r rewriteRule) models() (models []string) {
	if len(r.Matches) == 0 {
		return []string{""}
	}
	for _, match := range r.Matches {
		if match.Model.Value != "" {
			models = append(models, match.Model.Value)
		}
	}
	return models
}

// targets are those of a rule that can be chosen: all alike where none has a weight, else those that
// have one.
func (r rewriteRule) targets() (targets []RewriteTarget) {
	weighted := slices.ContainsFunc(r.Targets, func(t rewriteTarget) bool { return t.Weight > 0 })
	for _, t := range r.Targets {
		weight := t.Weight
		if !weighted {
			weight = 1
		}
		if t.ModelRewrite != "" && weight > 0 {
			targets = append(targets, RewriteTarget{Model: t.ModelRewrite, Weight: weight})
		}
	}
	return targets
}
