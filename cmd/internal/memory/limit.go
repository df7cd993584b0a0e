// Package memory tells Go's runtime how much memory this process may take. It is the only place that
// does; the command serve calls it. It imports nothing of ours.
package memory

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"
)

// errNoLimit: nothing bounds the memory of this process but the machine.
var errNoLimit = errors.New("no cgroup limits the memory")

// limitOf is the lowest memory limit of the cgroups that this process is in, in bytes, as the files of
// root (/) say: of version 2 memory.max of its group and of those above, of version 1
// memory.limit_in_bytes (cgroups(7), Documentation/admin-guide/cgroup-v2.rst).
func limitOf(root fs.FS) (int64, error) {
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0, err
	}
	lowest := int64(math.MaxInt64)
	for line := range strings.Lines(string(groups)) {
		// hierarchy:controllers:path; version 2 has the hierarchy 0 and no controllers.
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) < 3 {
			continue
		}
		mount, file := "sys/fs/cgroup", "memory.max"
		if hasMemory := strings.Contains(","+parts[1]+",", ",memory,"); hasMemory {
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		} else if parts[0] != "0" {
			continue
		}
		// In a container the path may be that of the host, and the mount the group itself.
		for group := path.Clean("/" + parts[2]); ; group = path.Dir(group) {
			lowest = min(lowest, readLimit(root, path.Join(mount, group, file)))
			if group == "/" {
				break
			}
		}
	}
	// Version 1 says "none" as the largest number of whole pages.
	if lowest >= math.MaxInt64>>1 {
		return 0, errNoLimit
	}
	return lowest, nil
}

// readLimit reads one limit; none is the largest number.
func readLimit(root fs.FS, name string) int64 {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return math.MaxInt64
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
	if err != nil || n <= 0 { // "max"
		return math.MaxInt64
	}
	return n
}
