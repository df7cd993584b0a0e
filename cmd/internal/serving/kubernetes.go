package serving

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/discovery/kube"
)

func bindKubernetes(fs *pflag.FlagSet, c *kube.Config) {
	fs.StringVar(&c.Pods, "kubernetes-pods", c.Pods, "label `selector` of pods that are servers, such as tandem/role")
	fs.StringVar(&c.Services, "kubernetes-services", c.Services, "label `selector` of Services whose endpoints are servers")
	fs.StringSliceVar(&c.InferencePools, "inference-pools", c.InferencePools,
		"`names` of InferencePools (inference.networking.k8s.io/v1) whose pods are servers")
	fs.StringVar(&c.Rules, "inference-objectives", c.Rules,
		"API `group` of InferenceObjectives and InferenceModelRewrites to follow: llm-d.ai, or inference.networking.x-k8s.io of the Inference "+
			"Extension before 1.6; empty: none. Those of the inference-pools count, or of the namespace where none are named")
	fs.StringVar(&c.Namespace, "kubernetes-namespace", c.Namespace, "`namespace` of all of them; empty: the gateway's own")
	fs.StringVar(&c.Connector, "kubernetes-connector", c.Connector,
		"`connector` of pods and endpoints that name none, such as llmd-sidecar where decode pods have llm-d's sidecar; empty: as the engine reports")
	fs.StringVar(&c.RackLabel, "kubernetes-rack-label", c.RackLabel, "`label` of nodes that names their rack")
	fs.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig, "`file` with the way to the cluster; empty: the one that this gateway runs in")
}

// findInKubernetes makes the cluster a source of servers, if it is asked for.
func (n *Node) findInKubernetes(reg prometheus.Registerer) error {
	if !n.cfg.discovery.kube.Enabled() {
		return nil
	}
	var err error
	if n.discovery.cluster, err = kube.New(n.cfg.discovery.kube, n.foundOf("kubernetes"), n.log); err != nil {
		return err
	}
	n.discovery.cluster.ReportRules(n.applyRules)
	return reg.Register(n.discovery.cluster)
}

// applyRules has requests follow what a cluster's objects say of them.
func (n *Node) applyRules(found kube.Rules) {
	rules := gateway.Rules{Levels: found.Priorities}
	for _, rewrite := range found.Rewrites {
		var targets []gateway.Target
		for _, t := range rewrite.Targets {
			targets = append(targets, gateway.Target{Model: t.Model, Weight: float64(t.Weight)})
		}
		if rewrite.Model == "" {
			rules.Fallback = targets
			continue
		}
		rules.Aliases = append(rules.Aliases, gateway.Alias{Name: rewrite.Model, Targets: targets})
	}
	n.server.SetRules(rules)
	n.log.Info("rules of the cluster found", "objectives", len(found.Priorities), "rewrites", len(found.Rewrites))
}

// clusterTime bounds the wait for the cluster when an operator asks by hand.
const clusterTime = 10 * time.Second

// askKubernetes returns the servers of the cluster at this moment; none if it is not
// asked for.
func askKubernetes(ctx context.Context, cfg kube.Config) ([]pools.Spec, error) {
	if !cfg.Enabled() {
		return nil, nil
	}
	found := make(chan []pools.Spec, 1)
	k, err := kube.New(cfg, func(specs []pools.Spec) {
		select {
		case found <- specs:
		default: // the first answer is the one
		}
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(ctx, clusterTime)
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.Run(ctx)
	}()
	defer func() {
		stop()
		<-done
	}()
	select {
	case specs := <-found:
		if missing := k.MissingPools(); len(missing) > 0 {
			return nil, fmt.Errorf("Kubernetes has no InferencePool %s", strings.Join(missing, ", "))
		}
		return specs, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("Kubernetes does not say which servers there are: %s", k.Problem())
	}
}
