package serving

import (
	"context"
	"net/http"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// Where one replica picks, the other says at both ports that it is alive and not ready, until the one
// that it follows is gone.
func TestPicker_AFollowerIsNotServing(t *testing.T) {
	a, b, first := deciders(t, func(cfg *config) {
		cfg.ports.picker, cfg.ports.pickerPlain, cfg.ports.pickerLeaderOnly = "127.0.0.1:0", true, true
	})
	_ = first.Close()
	expect := func(who string, c *cluster, ready bool) {
		t.Helper()
		want, status := healthpb.HealthCheckResponse_NOT_SERVING, http.StatusServiceUnavailable
		if ready {
			want, status = healthpb.HealthCheckResponse_SERVING, http.StatusOK
		}
		for _, service := range []string{"", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"} {
			if is := c.pickerHealth(t, service); is != want {
				t.Errorf("%s: %q is %v, want %v", who, service, is, want)
			}
		}
		if is := c.pickerHealth(t, "liveness"); is != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("%s: liveness is %v", who, is)
		}
		if got := c.get("/readyz"); got.status != status || !ready && got.body != "another replica picks\n" {
			t.Errorf("%s: /readyz answers %d, %q", who, got.status, got.body)
		}
	}
	expect("the leader", a, true)
	expect("the follower", b, false)
	a.node.sharing.decider.grpc.Stop()
	eventually(t, "b follows nobody", func() bool { return b.metric("tandem_leader_followed") == 0 })
	expect("the follower of a leader that is gone", b, true)
}

// pickerHealth is what the picker's port says of a service.
func (c *cluster) pickerHealth(t *testing.T, service string) healthpb.HealthCheckResponse_ServingStatus {
	t.Helper()
	conn, err := grpc.NewClient(c.node.PickerAddr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answer, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{Service: service})
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetStatus()
}
