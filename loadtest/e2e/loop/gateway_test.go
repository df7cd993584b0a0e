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

	l.gatewayArgs(t, "--scale-decode-min=4")
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

// TestFromZero: both pools go to zero together, requests that come then are held by the
// gateways, bring both pools back together, and are all answered; later both go again.
func TestFromZero(t *testing.T) {
	const gateways = "app.kubernetes.io/name=tandem"
	d := deployed.Start(t)
	l := &loop{Deployment: d, whole: t, grpc: d.Service(t, gateways, "9090"), admin: d.Service(t, gateways, "8081")}
	l.gatewayArgs(t, "--scale-prefill-min=0", "--scale-decode-min=0", "--scale-idle-after=20s")
	l.StartKEDA(t)
	l.applyScaledObjects(t)
	l.mayGoToZero(t)
	l.goTogether(t)

	run := load.Start(t, "http://"+d.Service(t, gateways, "8080"), 10, 30*time.Second)
	l.comeTogether(t)
	run.Check(t)
	l.goTogether(t)
}

// goTogether waits until no pool has a server, and demands that both lost their last one
// at about the same time.
func (l *loop) goTogether(t *testing.T) {
	t.Helper()
	gone := l.reach(t, "gone", func(spec, _ int) bool { return spec == 0 })
	if apart := gone["prefill"].Sub(gone["decode"]).Abs(); apart > togetherWithin {
		t.Errorf("one pool went %v before the other", apart)
	}
}

// comeTogether waits until both pools have a server that is ready, likewise.
func (l *loop) comeTogether(t *testing.T) {
	t.Helper()
	wished := l.reach(t, "wished for", func(spec, _ int) bool { return spec > 0 })
	if apart := wished["prefill"].Sub(wished["decode"]).Abs(); apart > togetherWithin {
		t.Errorf("one pool was scaled %v before the other", apart)
	}
	l.reach(t, "ready", func(_, ready int) bool { return ready > 0 })
}

// togetherWithin is two of KEDA's polls, which are not in step for two ScaledObjects.
const togetherWithin = 5 * time.Second

// reach waits until both pools are in a state, and returns when each came into it.
func (l *loop) reach(t *testing.T, what string, holds func(spec, ready int) bool) map[string]time.Time {
	t.Helper()
	began, at := time.Now(), make(map[string]time.Time)
	process.WaitFor(t, nil, "both pools to be "+what, obeyedWithin, func() error {
		for _, role := range []string{"prefill", "decode"} {
			spec, ready, err := l.replicas(role)
			if err != nil {
				return err
			}
			if at[role].IsZero() && holds(spec, ready) {
				at[role] = time.Now()
				t.Logf("%s: %s after %v", role, what, time.Since(began).Round(10*time.Millisecond))
			}
		}
		if len(at) < 2 {
			return fmt.Errorf("of two pools %d are", len(at))
		}
		return nil
	})
	return at
}

// gatewayArgs adds arguments to the gateways and waits until all have them.
func (l *loop) gatewayArgs(t *testing.T, args ...string) {
	t.Helper()
	var patch []string
	for _, arg := range args {
		patch = append(patch, fmt.Sprintf(`{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":%q}`, arg))
	}
	l.Kubectl(t, "-n", deployed.Namespace, "patch", "deployment", "tandem", "--type=json", "-p", "["+strings.Join(patch, ",")+"]")
	l.WaitRollout(t, "tandem")
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
