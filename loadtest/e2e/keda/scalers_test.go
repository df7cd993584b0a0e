package keda

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	kedav1alpha1 "github.com/kedacore/keda/v2/apis/keda/v1alpha1"
	"github.com/kedacore/keda/v2/pkg/scalers"
	"github.com/kedacore/keda/v2/pkg/scalers/scalersconfig"
	"sigs.k8s.io/yaml"
)

// model is that of deploy/keda.
const model = "Qwen/Qwen3-0.6B"

// triggers reads the triggers of a file in deploy/keda, by role, with the addresses
// in it replaced by some of this machine.
func triggers(t *testing.T, file string, places ...string) map[string]*scalersconfig.ScalerConfig {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "deploy/keda", file))
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]*scalersconfig.ScalerConfig)
	for _, document := range strings.Split(strings.NewReplacer(places...).Replace(string(text)), "\n---\n") {
		if !strings.Contains(document, "kind: ScaledObject") {
			continue
		}
		var so kedav1alpha1.ScaledObject
		if err := yaml.UnmarshalStrict([]byte(document), &so); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if len(so.Spec.Triggers) != 1 {
			t.Fatalf("%s: %d triggers", so.Name, len(so.Spec.Triggers))
		}
		trigger := so.Spec.Triggers[0]
		found[strings.TrimPrefix(so.Name, "vllm-")] = &scalersconfig.ScalerConfig{
			ScalableObjectName: so.Name, ScalableObjectNamespace: "tandem", ScalableObjectType: "ScaledObject",
			GlobalHTTPTimeout: 3 * time.Second,
			TriggerMetadata:   trigger.Metadata, TriggerType: trigger.Type, MetricType: trigger.MetricType,
			AuthParams: map[string]string{"token": "secret"},
		}
	}
	if len(found) != 2 {
		t.Fatalf("%s has %d ScaledObjects", file, len(found))
	}
	return found
}

// read asks a scaler as KEDA does for each poll, and HPA through it.
func read(t *testing.T, s scalers.Scaler) (value float64, active bool, err error) {
	t.Helper()
	specs := s.GetMetricSpecForScaling(t.Context())
	if len(specs) != 1 {
		return 0, false, fmt.Errorf("%d metric specs", len(specs))
	}
	target := specs[0].External.Target
	if target.AverageValue == nil || target.AverageValue.AsApproximateFloat64() != 1 {
		t.Errorf("target %v, want an average of 1", target)
	}
	metrics, active, err := s.GetMetricsAndActivity(t.Context(), specs[0].External.Metric.Name)
	if err != nil {
		return 0, false, err
	}
	if len(metrics) != 1 {
		return 0, false, fmt.Errorf("%d metrics", len(metrics))
	}
	return metrics[0].Value.AsApproximateFloat64(), active, nil
}

// TestScalers: each trigger of deploy/keda reads exactly what is wanted, and an error
// where nothing is known.
func TestScalers(t *testing.T) {
	tandem := startScaler(t)
	prometheus := startPrometheus(t, tandem)
	for _, way := range []struct {
		name   string
		file   string
		places []string
		open   func(*scalersconfig.ScalerConfig) (scalers.Scaler, error)
	}{
		{"prometheus", "prometheus.yaml", []string{"prometheus.monitoring.svc:9090", prometheus}, scalers.NewPrometheusScaler},
		{"metrics-api", "metrics-api.yaml", []string{"tandem-admin.tandem.svc:8081", tandem.admin}, func(c *scalersconfig.ScalerConfig) (scalers.Scaler, error) {
			return scalers.NewMetricsAPIScaler(c, nil)
		}},
		{"external", "external-push.yaml", []string{"tandem-admin.tandem.svc:9090", tandem.grpc}, scalers.NewExternalScaler},
		{"external-push", "external-push.yaml", []string{"tandem-admin.tandem.svc:9090", tandem.grpc}, func(c *scalersconfig.ScalerConfig) (scalers.Scaler, error) {
			return scalers.NewExternalPushScaler(c)
		}},
	} {
		for role, config := range triggers(t, way.file, way.places...) {
			t.Run(way.name+" "+role, func(t *testing.T) {
				s, err := way.open(config)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close(context.Background())
				for _, replicas := range []int{10, 11, 0, 1} {
					tandem.wants(t, fmt.Sprintf("%s %s %d", model, role, replicas))
					// A Prometheus needs a scrape.
					eventually(t, fmt.Sprintf("%d replicas", replicas), func() error {
						value, active, err := read(t, s)
						if err == nil && (value != float64(replicas) || active != (replicas > 0)) {
							err = fmt.Errorf("read %v, active %v", value, active)
						}
						return err
					})
				}
				tandem.wants(t, fmt.Sprintf("%s %s unknown", model, role))
				eventually(t, "an error for what is unknown", func() error {
					if value, active, err := read(t, s); err == nil {
						return fmt.Errorf("read %v, active %v", value, active)
					}
					return nil
				})
			})
		}
	}
}

// TestPush: the first held request reaches KEDA at once, and a stream that breaks
// begins again with what holds.
func TestPush(t *testing.T) {
	tandem := &scaler{grpc: freeAddress(t), admin: freeAddress(t)}
	stop := tandem.start(t)
	config := triggers(t, "external-push.yaml", "tandem-admin.tandem.svc:9090", tandem.grpc)["decode"]
	tandem.wants(t, model+" decode 0")
	s, err := scalers.NewExternalPushScaler(config)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())

	next := follow(t, s)
	if next() {
		t.Error("active while nothing is wanted and no request waits")
	}
	// A busy machine may need longer than a second, so one of some tries will do.
	soonest := time.Minute
	for tries := 0; tries < 10 && soonest > time.Second; tries++ {
		tandem.wants(t, model+" decode 0")
		for tries > 0 && next() { // while requests are held it says so again and again
		}
		held := time.Now()
		tandem.wants(t, model+" decode 0 1")
		if !next() {
			t.Error("not active while a request is held")
		}
		soonest = min(soonest, time.Since(held))
	}
	if t.Logf("the push took %v, with the line that caused it", soonest); soonest > time.Second {
		t.Errorf("the push took %v at best", soonest)
	}
	// A stream that fails KEDA opens anew after 2 s, 4 s, 8 s and so on: one that ends does
	// not make it more patient.
	for restart := range 3 {
		tandem.wants(t, model+" decode 0")
		for next() { // while requests are held it says so again and again
		}
		stop()
		restarted := time.Now()
		stop = tandem.start(t)
		tandem.wants(t, model+" decode 0 1")
		if !next() {
			t.Error("after a restart it does not say that a request is held")
		}
		took := time.Since(restarted)
		t.Logf("after a restart it took %v", took.Round(10*time.Millisecond))
		if restart == 2 && took > 7*time.Second {
			t.Error("KEDA waits longer than after a first failure")
		}
	}
}

// follow runs a push scaler until the test ends; next waits for what it says.
func follow(t *testing.T, s scalers.PushScaler) (next func() bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	said, ended := make(chan bool), make(chan struct{})
	go func() {
		defer close(ended)
		s.Run(ctx, said)
	}()
	t.Cleanup(func() {
		cancel()
		for range said { // Run closes it
		}
		<-ended
	})
	return func() bool {
		t.Helper()
		select {
		case active := <-said:
			return active
		case <-time.After(time.Minute):
			t.Fatal("no push in a minute")
			return false
		}
	}
}
