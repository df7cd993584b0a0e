package engine

import "fmt"

// isVLLM reports whether the engine is vLLM of at least this minor version.
func (e *Engine) isVLLM(least int) bool { return e.owner() == "vllm" && e.isSince(least, 0) }

// isSince reports whether the engine's version is at least 0.minor.patch. One that cannot be read is an old one.
func (e *Engine) isSince(minor, patch int) bool {
	var v [3]int
	n, _ := fmt.Sscanf(e.cfg.Version, "%d.%d.%d", &v[0], &v[1], &v[2]) // of 0.32 two
	return n >= 2 && (v[0] > 0 || v[1] > minor || v[1] == minor && v[2] >= patch)
}
