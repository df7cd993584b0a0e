package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// Every image of chart and kustomization can be pinned by its digest. Which digests these are nobody
// can know here: the images are the user's, or in registries that no test reaches.
func TestDigests_PinEveryImage(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	t.Run("chart", func(t *testing.T) {
		checkPinned(t, rendered(t, "vllm-nixl", "tandem", "--set", "image.digest="+digest+
			",redis.image=redis@"+digest+",engines.vllm.image=vllm/vllm-openai@"+digest), digest)
	})
	t.Run("kustomization", func(t *testing.T) {
		dir := t.TempDir()
		base, err := filepath.Rel(dir, filepath.Join(process.Root(t), "deploy/kustomize"))
		if err != nil {
			t.Fatal(err)
		}
		text := "resources: [" + base + "]\nimages:\n"
		for _, name := range []string{"tandem", "redis", "vllm/vllm-openai"} {
			text += fmt.Sprintf("  - {name: %s, digest: %q}\n", name, digest)
		}
		if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		checkPinned(t, kustomization(t, dir), digest)
	})
}

// image is a line that names one.
var image = regexp.MustCompile(`(?m)^ *-? *image: "?([^"\n]*)"?$`)

// checkPinned demands that all images of manifests have a digest: the gateway's, the Redis's and the
// engines'.
func checkPinned(t *testing.T, manifests, digest string) {
	t.Helper()
	var names []string
	for _, found := range image.FindAllStringSubmatch(manifests, -1) {
		name, pinned := strings.CutSuffix(found[1], "@"+digest)
		if !pinned {
			t.Errorf("%s has no digest", found[1])
		}
		names = append(names, name)
	}
	slices.Sort(names)
	if got := strings.Join(slices.Compact(names), " "); got != "redis tandem vllm/vllm-openai" {
		t.Errorf("the images are %s", got)
	}
}
