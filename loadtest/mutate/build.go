package mutate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// build compiles the tests of a package with places behind switches: that of places[i] is i+1.
func build(ctx context.Context, dir, name, work string, race bool, places []place) (string, error) {
	if err := os.MkdirAll(work, 0o755); err != nil {
		return "", err
	}
	list, err := overlay(dir, name, work, places)
	if err != nil {
		return "", err
	}
	out := filepath.Join(work, "package.test")
	args := []string{"test", "-c", "-vet=off", "-overlay", list, "-o", out}
	if race {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, ".")...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go test -c in %s: %w\n%s", dir, errors.Join(err, ctx.Err()), out)
	}
	return out, nil
}
