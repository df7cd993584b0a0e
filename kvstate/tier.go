package kvstate

import (
	"strings"

	"github.com/tandem-gateway/tandem/kvstate/cached"
)

// Tier is where a server keeps a block. A slower tier costs time to load from.
type Tier uint8

// The tiers, fastest first.
const (
	GPU Tier = iota
	CPU
	Disk

	tiers
)

// nowhere is the level of a block that no prompt can be matched through.
const nowhere = tiers

// Of returns the tokens that are held in the tier and those faster.
func (t Tier) Of(held cached.Tokens) int {
	switch t {
	case GPU:
		return held.GPU
	case CPU:
		return held.CPU
	}
	return held.Disk
}

func (t Tier) String() string {
	switch t {
	case GPU:
		return "gpu"
	case CPU:
		return "cpu"
	case Disk:
		return "disk"
	}
	return "nowhere"
}

// tierOf reads the medium of an event: vLLM says GPU and CPU, SGLang GPU, CPU_PINNED
// and DISK, others STORAGE or a file system. No medium is the GPU, as in engines that
// knew no other. False: unknown.
func tierOf(medium []byte) (Tier, bool) {
	if len(medium) == 0 || string(medium) == "GPU" {
		return GPU, true
	}
	if len(medium) > 32 {
		return nowhere, false
	}
	m := strings.ToUpper(string(medium))
	switch {
	case strings.HasPrefix(m, "GPU"), strings.HasPrefix(m, "HBM"):
		return GPU, true
	case strings.HasPrefix(m, "CPU"), strings.HasPrefix(m, "HOST"), strings.HasPrefix(m, "DRAM"):
		return CPU, true
	case strings.HasPrefix(m, "DISK"), strings.HasPrefix(m, "SSD"), strings.HasPrefix(m, "NVME"),
		strings.HasPrefix(m, "STORAGE"), strings.HasPrefix(m, "FILE"), m == "FS":
		return Disk, true
	}
	return nowhere, false
}
