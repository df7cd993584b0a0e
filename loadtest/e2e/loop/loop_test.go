package loop

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/deployed"
	"github.com/tandem-gateway/tandem/loadtest/e2e/load"
	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

const (
	// model is that of deploy/keda.
	model = "Qwen/Qwen3-0.6B"
	// obeyedWithin bounds every wait for KEDA and HPA to do what is wanted.
	obeyedWithin = 2 * time.Minute
	// staysFor is how long a number of replicas is watched that must not change:
	// several of HPA's rounds (1 s) and KEDA's polls (2 s).
	staysFor = 10 * time.Second
)

// loop is a deployment that KEDA scales by what a scaler says.
type loop struct {
	*deployed.Deployment
	whole       *testing.T // the test that processes live as long as
	grpc, admin string     // the scaler's addresses
	say         io.WriteCloser
	stop        func()
	wanted      []string // lines, said again after a restart
}

// TestLoop: KEDA and HPA do what Tandem wants, exactly, and nothing when they do not
// know.
func TestLoop(t *testing.T) {
	l := &loop{Deployment: deployed.Start(t), whole: t, grpc: process.FreeAddress(t), admin: process.FreeAddress(t)}
	l.startScaler(t)
	l.wants(t, "prefill 2", "decode 2")
	l.StartKEDA(t)
	l.applyScaledObjects(t)

	t.Run("10, 11, 10, exactly", func(t *testing.T) {
		for _, n := range []int{10, 11, 10} {
			l.wants(t, "prefill 2", fmt.Sprintf("decode %d", n))
			l.obeys(t, "decode", n)
			l.stays(t, "decode", n)
		}
	})
	t.Run("scale-in under load breaks no stream", func(t *testing.T) {
		run := load.Start(t, "http://"+l.Gateway(t)+":8080", 10, 30*time.Second)
		l.wants(t, "prefill 2", "decode 3")
		l.obeys(t, "decode", 3)
		select {
		case <-run.Ended:
			t.Error("the load ended before the scale-in did")
		default:
		}
		run.Check(t)
		process.WaitFor(t, nil, "the drained pods to go", obeyedWithin, func() error {
			pods, err := l.Cluster.Pods(deployed.Namespace, "tandem/role=decode")
			if err == nil && len(pods) != 3 {
				err = fmt.Errorf("%d are there", len(pods))
			}
			return err
		})
	})
	t.Run("a restart of what KEDA asks holds the replicas", func(t *testing.T) {
		l.stop()
		l.stays(t, "decode", 3)
		l.startScaler(t)
		l.stays(t, "decode", 3)
		l.wants(t, "prefill 2", "decode 4")
		l.obeys(t, "decode", 4)
	})
	t.Run("fallback is entered and left", func(t *testing.T) {
		l.wants(t, "prefill 1", "decode 4")
		l.obeys(t, "prefill", 1)
		l.wants(t, "prefill unknown", "decode unknown")
		l.fallsBack(t, "decode", "True")
		l.fallsBack(t, "prefill", "True")
		l.obeys(t, "prefill", 2) // the fallback's, which is more
		l.stays(t, "decode", 4)  // which is more than the fallback's
		l.wants(t, "prefill 1", "decode 5")
		l.obeys(t, "prefill", 1)
		l.obeys(t, "decode", 5)
		l.fallsBack(t, "decode", "False")
	})
	t.Run("from zero by the first held request", func(t *testing.T) { l.wakes(t) })
}

// mayGoToZero takes the bounds of deploy/keda away that keep a server. Polls are rare: a
// push is known by being quicker.
func (l *loop) mayGoToZero(t *testing.T) {
	t.Helper()
	for _, role := range []string{"prefill", "decode"} {
		l.Kubectl(t, "-n", deployed.Namespace, "patch", "scaledobject", "vllm-"+role, "--type=merge",
			"-p", `{"spec":{"minReplicaCount":0,"initialCooldownPeriod":0,"cooldownPeriod":1,"pollingInterval":10}}`)
	}
}

// wakes lets both pools go to zero, and has both come back for a held request, again and
// again: it comes as soon as the last pool is at zero, which KEDA's own cache of the
// Deployments may not show yet. A push that comes then does nothing, so it is repeated.
func (l *loop) wakes(t *testing.T) {
	l.mayGoToZero(t)
	for range wakings {
		l.wants(t, "prefill 0", "decode 0")
		l.reach(t, "gone", func(spec, _ int) bool { return spec == 0 })
		l.wants(t, "prefill 1 1", "decode 1 1")
		l.comeTogether(t)
	}
}

// startScaler starts `tandem scaler`, at the same addresses as before, and says again
// what is wanted.
func (l *loop) startScaler(t *testing.T) {
	t.Helper()
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(process.Root(t), "bin/tandem"), "scaler", "--listen", l.grpc, "--admin", l.admin)
	cmd.Stdin, cmd.Stderr = in, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	l.say = out
	stopped := false
	l.stop = func() {
		if !stopped {
			stopped = true
			out.Close()
			_ = cmd.Process.Signal(os.Interrupt)
			_ = cmd.Wait() // an interrupt is how it ends
		}
	}
	l.whole.Cleanup(l.stop)
	process.WaitFor(t, nil, "tandem scaler", process.ReadyWithin, process.Answers("http://"+l.admin+"/metrics"))
	l.repeat(t)
}

// wants says how many servers each role should have: "ROLE REPLICAS [HELD]".
func (l *loop) wants(t *testing.T, lines ...string) {
	t.Helper()
	l.wanted = lines
	l.repeat(t)
}

func (l *loop) repeat(t *testing.T) {
	t.Helper()
	for _, line := range l.wanted {
		if _, err := fmt.Fprintln(l.say, model, line); err != nil {
			t.Fatal(err)
		}
	}
}

// applyScaledObjects applies deploy/keda/external-push.yaml, with the scaler's
// address, and polls that a test can wait for, and with more texts replaced.
func (l *loop) applyScaledObjects(t *testing.T, replaced ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(process.Root(t), "deploy/keda/external-push.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	manifest := strings.NewReplacer(append(replaced, "tandem-admin.tandem.svc:9090", l.grpc, "pollingInterval: 15", "pollingInterval: 2",
		"kind: ScaledObject\nmetadata:\n", "kind: ScaledObject\nmetadata:\n  namespace: "+deployed.Namespace+"\n")...).Replace(string(text))
	l.Apply(t, manifest)
}

// obeys waits until a pool has so many pods, all ready, and wants no other number.
func (l *loop) obeys(t *testing.T, role string, want int) {
	t.Helper()
	began := time.Now()
	process.WaitFor(t, nil, fmt.Sprintf("%d %s servers", want, role), obeyedWithin, func() error {
		spec, ready, err := l.replicas(role)
		if err == nil && (spec != want || ready != want) {
			err = fmt.Errorf("%d are asked for, %d ready", spec, ready)
		}
		return err
	})
	t.Logf("%s: %d after %v", role, want, time.Since(began).Round(100*time.Millisecond))
}

// stays watches a pool that must not change.
func (l *loop) stays(t *testing.T, role string, want int) {
	t.Helper()
	watched := time.After(staysFor)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if spec, _, err := l.replicas(role); err != nil || spec != want {
			t.Fatalf("%s: %d are asked for and not %d (%v)", role, spec, want, err)
		}
		select {
		case <-watched:
			return
		case <-tick.C:
		}
	}
}

// replicas returns how many pods a pool's Deployment asks for, and how many are ready.
func (l *loop) replicas(role string) (spec, ready int, err error) {
	var d struct {
		Spec   struct{ Replicas int }
		Status struct{ Replicas, ReadyReplicas int }
	}
	err = l.Do("GET", "/apis/apps/v1/namespaces/"+deployed.Namespace+"/deployments/vllm-"+role, nil, &d)
	return d.Spec.Replicas, d.Status.ReadyReplicas, err
}

// fallsBack waits until a ScaledObject's Fallback condition is so.
func (l *loop) fallsBack(t *testing.T, role, want string) {
	t.Helper()
	process.WaitFor(t, nil, "the fallback of "+role+" to be "+want, obeyedWithin, func() error {
		var so struct {
			Status struct {
				Conditions []struct{ Type, Status string }
			}
		}
		if err := l.Do("GET", "/apis/keda.sh/v1alpha1/namespaces/"+deployed.Namespace+"/scaledobjects/vllm-"+role, nil, &so); err != nil {
			return err
		}
		for _, c := range so.Status.Conditions {
			if c.Type == "Fallback" && c.Status == want {
				return nil
			}
		}
		return fmt.Errorf("conditions are %+v", so.Status.Conditions)
	})
}
