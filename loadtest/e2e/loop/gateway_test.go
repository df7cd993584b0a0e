package loop

import (
	"fmt"
	"io"
	"net/http"
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

	clients := "http://" + d.Service(t, gateways, "8080")
	answered := ask(clients, 20)
	run := load.Start(t, clients, 10, 30*time.Second)
	l.comeTogether(t)
	for range 20 {
		if err := <-answered; err != nil {
			t.Error(err)
		}
	}
	run.Check(t)
	l.goTogether(t)
}

// ask sends requests at once, every other one to be streamed, and tells of each how it
// was answered.
func ask(url string, requests int) <-chan error {
	answered := make(chan error, requests)
	client := &http.Client{Timeout: 10 * time.Minute} // they wait for servers that KEDA starts
	for i := range requests {
		go func() {
			body := fmt.Sprintf(`{"model":%q,"prompt":"of the sea, the %dth","max_tokens":4,"stream":%v}`, model, i, i%2 == 0)
			res, err := client.Post(url+"/v1/completions", "application/json", strings.NewReader(body))
			if err != nil {
				answered <- err
				return
			}
			text, err := io.ReadAll(res.Body)
			res.Body.Close()
			whole := strings.Contains(string(text), `"completion_tokens":4`) || strings.HasSuffix(string(text), "data: [DONE]\n\n")
			if err == nil && (res.StatusCode != http.StatusOK || !whole) {
				err = fmt.Errorf("%s: %s", res.Status, text)
			}
			answered <- err
		}()
	}
	return answered
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

// comeTogether waits until both pools have a server that is ready, and demands that
// KEDA was told of the first held request by a push: its polls are slower.
func (l *loop) comeTogether(t *testing.T) {
	t.Helper()
	began := time.Now()
	wished := l.reach(t, "wished for", func(spec, _ int) bool { return spec > 0 })
	for role, at := range wished {
		if took := at.Sub(began); took > wishedWithin {
			t.Errorf("%s was scaled %v after the first request", role, took)
		}
	}
	l.reach(t, "ready", func(_, ready int) bool { return ready > 0 })
}

const (
	// wakings is how often both pools are woken: the race that a single push loses is seldom.
	wakings = 4
	// togetherWithin is two of KEDA's polls, which are not in step for two ScaledObjects.
	togetherWithin = 25 * time.Second
	// wishedWithin is for the push, on a machine that does all of this at once.
	wishedWithin = 2 * time.Second
)

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
				t.Logf("%s: %s after %v, %d are asked for", role, what, time.Since(began).Round(10*time.Millisecond), spec)
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
	l.addArgs(t, args...)
	l.WaitRollout(t, "tandem")
}

// addArgs adds arguments to the gateways, which are replaced one after the other.
func (l *loop) addArgs(t *testing.T, args ...string) {
	t.Helper()
	var patch []string
	for _, arg := range args {
		patch = append(patch, fmt.Sprintf(`{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":%q}`, arg))
	}
	l.Kubectl(t, "-n", deployed.Namespace, "patch", "deployment", "tandem", "--type=json", "-p", "["+strings.Join(patch, ",")+"]")
}

// decides waits until the gateways want so many servers of a role.
func (l *loop) decides(t *testing.T, role string, want int) {
	t.Helper()
	l.says(t, role, fmt.Sprintf(`"replicas":%d,`, want))
}

// says waits until what the gateways say of a role has a text in it.
func (l *loop) says(t *testing.T, role, want string) {
	t.Helper()
	process.WaitFor(t, nil, "the gateways to say of "+role+" "+want, obeyedWithin, func() error {
		text, err := deployed.Get("http://" + l.admin + "/autoscale/v1/pool?model=" + model + "&role=" + role)
		if err == nil && !strings.Contains(text, want) {
			err = fmt.Errorf("they say %s", text)
		}
		return err
	})
}
