package loop

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/deployed"
	"github.com/tandem-gateway/tandem/loadtest/e2e/load"
	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// TestGateway: what the gateways themselves want is obeyed, and a rollout of the
// gateways under load neither fails a request nor takes a server away.
func TestGateway(t *testing.T) {
	const gateways = "app.kubernetes.io/name=tandem"
	d := deployed.Start(t)
	l := &loop{Deployment: d, whole: t, grpc: d.Service(t, gateways, "9090"), admin: d.Service(t, gateways, "8081")}
	l.StartKEDA(t)
	l.applyScaledObjects(t)
	run := load.Start(t, "http://"+d.Service(t, gateways, "8080"), 10, 75*time.Second)
	l.decides(t, "decode", 2)

	l.Kubectl(t, "-n", deployed.Namespace, "patch", "deployment", "tandem", "--type=json",
		"-p", `[{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--scale-decode-min=4"}]`)
	l.WaitRollout(t, "tandem")
	l.decides(t, "decode", 4)
	l.obeys(t, "decode", 4)
	l.stays(t, "decode", 4)
	l.obeys(t, "prefill", 2)
	select {
	case <-run.Ended:
		t.Error("the load ended before the scale-out did")
	default:
	}
	run.Check(t)
}

// decides waits until the gateways want so many servers of a role.
func (l *loop) decides(t *testing.T, role string, want int) {
	t.Helper()
	process.WaitFor(t, nil, fmt.Sprintf("the gateways to want %d %s servers", want, role), obeyedWithin, func() error {
		text, err := deployed.Get("http://" + l.admin + "/autoscale/v1/pool?model=" + model + "&role=" + role)
		if err == nil && !strings.Contains(text, fmt.Sprintf(`"replicas":%d,`, want)) {
			err = fmt.Errorf("they say %s", text)
		}
		return err
	})
}
