package policy

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The simulators and what they share with the gateway are pure: what they print cannot
// depend on a network, a Redis or a cluster, and they build in a moment.
func TestImports_ArePure(t *testing.T) {
	const ours = "github.com/tandem-gateway/tandem/"
	out, err := exec.Command("go", "list", "-deps", ours+"loadtest/policy", ours+"loadtest/scaling", ours+"pd/cost").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	deps := strings.Fields(string(out))
	if !slices.Contains(deps, ours+"pd/order") || len(deps) < 50 {
		t.Fatalf("these are not all packages: %v", deps)
	}
	for _, dep := range deps {
		for _, forbidden := range []string{
			"google.golang.org/grpc", "github.com/redis/", "github.com/prometheus/", "go.opentelemetry.io/", "k8s.io/", "sigs.k8s.io/",
			"github.com/gofiber/", "github.com/valyala/", "net/http",
		} {
			if strings.HasPrefix(dep, forbidden) {
				t.Errorf("a simulator contains %s", dep)
			}
		}
		if own, is := strings.CutPrefix(dep, ours); is && slices.Contains([]string{"cmd", "gateway", "pd", "pools", "kvstate", "autoscale"}, own) {
			t.Errorf("a simulator contains %s, which is not pure", dep)
		}
	}
}
