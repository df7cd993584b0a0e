package loop

import (
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/e2e/cluster"
)

// TestManifests: the API server takes every file of deploy/keda, no field of which it
// does not know, and keeps the settings that make the wanted numbers exact.
func TestManifests(t *testing.T) {
	c := cluster.Start(t)
	c.DefineKEDA(t)
	c.Kubectl(t, "create", "namespace", "tandem")
	for file, way := range map[string]struct{ trigger, key, value string }{
		"external-push.yaml": {"external-push", "scalerAddress", "tandem-admin.tandem.svc:9090"},
		"metrics-api.yaml":   {"metrics-api", "valueLocation", "replicas"},
		"prometheus.yaml":    {"prometheus", "ignoreNullValues", "false"},
	} {
		t.Run(file, func(t *testing.T) {
			c.Kubectl(t, "apply", "-n", "tandem", "--server-side", "--force-conflicts", "--validate=strict", "-f", "deploy/keda/"+file)
			for _, name := range []string{"vllm-prefill", "vllm-decode"} {
				var so scaledObject
				if err := c.Do("GET", "/apis/keda.sh/v1alpha1/namespaces/tandem/scaledobjects/"+name, nil, &so); err != nil {
					t.Fatal(err)
				}
				so.check(t, name)
				if trigger := so.Spec.Triggers[0]; trigger.Type != way.trigger || trigger.Metadata[way.key] != way.value {
					t.Errorf("%s: trigger %+v", name, trigger)
				}
			}
		})
	}
}

// scaledObject is what is read of one.
type scaledObject struct {
	Spec struct {
		InitialCooldownPeriod int
		Fallback              struct {
			FailureThreshold int
			Behavior         string
		}
		Advanced struct {
			HorizontalPodAutoscalerConfig struct {
				Behavior struct{ ScaleUp, ScaleDown scaling }
			}
		}
		Triggers []struct {
			Type, MetricType string
			Metadata         map[string]string
		}
	}
}

type scaling struct {
	Tolerance                  string
	StabilizationWindowSeconds *int
}

// check demands the settings that all three ways share.
func (so *scaledObject) check(t *testing.T, name string) {
	t.Helper()
	for _, s := range []scaling{so.Spec.Advanced.HorizontalPodAutoscalerConfig.Behavior.ScaleUp, so.Spec.Advanced.HorizontalPodAutoscalerConfig.Behavior.ScaleDown} {
		if s.Tolerance != "0" || s.StabilizationWindowSeconds == nil || *s.StabilizationWindowSeconds != 0 {
			t.Errorf("%s: behaviour %+v, want no tolerance and no window", name, s)
		}
	}
	f := so.Spec.Fallback
	if f.FailureThreshold == 0 || f.Behavior != "currentReplicasIfHigher" || so.Spec.InitialCooldownPeriod == 0 {
		t.Errorf("%s: fallback %+v, initial cooldown %d s", name, f, so.Spec.InitialCooldownPeriod)
	}
	if len(so.Spec.Triggers) != 1 || so.Spec.Triggers[0].MetricType != "AverageValue" {
		t.Fatalf("%s: triggers %+v, want one of a total", name, so.Spec.Triggers)
	}
}
