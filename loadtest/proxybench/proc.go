package proxybench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// tree is a process and all that descend from it.
type tree struct{ root int }

// userHZ is the unit of times in /proc, which Linux has fixed at a hundredth of a second.
const userHZ = 100

// cpu is what the tree has computed so far, with its children that have ended. Of those that run it is
// read from their clocks, to the nanosecond: a short measure has few ticks of /proc.
func (t tree) cpu() (time.Duration, error) {
	stats, err := t.stats()
	if err != nil {
		return 0, err
	}
	total := time.Duration(0)
	for _, s := range stats {
		var now unix.Timespec
		if err := unix.ClockGettime(clockOf(s.pid), &now); err != nil {
			return 0, fmt.Errorf("read the clock of process %d: %w", s.pid, err)
		}
		total += time.Duration(now.Nano()) + time.Duration(s.ended)*time.Second/userHZ
	}
	return total, nil
}

// clockOf is the clock of a process's CPU: clock_getcpuclockid(3).
func clockOf(pid int) int32 {
	const scheduled = 2 // CPUCLOCK_SCHED in Linux's include/linux/posix-timers_types.h
	return int32(^pid<<3 | scheduled)
}

// memory of the tree in bytes: its own, and its part of what it shares, without files that are mapped. How much of a
// program's text counts depends on how the system keeps the file: of one program 30 MB at its start and 1.8 more with
// a thousand streams, or all of its 50 MB at its start. Files of a tmpfs count as shared memory: a program must not lie on one.
func (t tree) memory() (int, error) {
	stats, err := t.stats()
	if err != nil {
		return 0, err
	}
	total := 0
	for _, s := range stats {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", s.pid))
		if err != nil {
			return 0, fmt.Errorf("read the memory of %d: %w", s.pid, err)
		}
		for _, part := range []string{"Pss_Anon:", "Pss_Shmem:"} {
			kib, err := fieldOf(text, part)
			if err != nil {
				return 0, err
			}
			total += kib << 10
		}
	}
	return total, nil
}

// fieldOf is the number behind a name in a file of lines of name and number.
func fieldOf(text []byte, name string) (int, error) {
	for line := range bytes.Lines(text) {
		if fields := strings.Fields(string(line)); len(fields) > 1 && fields[0] == name {
			return strconv.Atoi(fields[1])
		}
	}
	return 0, fmt.Errorf("there is no %s", name)
}

// stat is what is read of /proc/PID/stat; ended are the ticks of children that have ended.
type stat struct{ pid, parent, ended int }

// stats are those of the processes of the tree.
func (t tree) stats() ([]stat, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	children := map[int][]stat{}
	var found []stat
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		s, err := parseStat(text)
		if err != nil {
			return nil, err
		}
		if s.pid == t.root {
			found = append(found, s)
		}
		children[s.parent] = append(children[s.parent], s)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("process %d is gone", t.root)
	}
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i].pid]...)
	}
	return found, nil
}

// parseStat reads a line of proc(5): the name in brackets may have anything in it.
func parseStat(text []byte) (s stat, err error) {
	end := bytes.LastIndexByte(text, ')')
	fields := strings.Fields(string(text[end+1:]))
	if end < 0 || len(fields) < 15 {
		return s, fmt.Errorf("%q is not a line of /proc/PID/stat", text)
	}
	pid, _, _ := strings.Cut(string(text), " ")
	for _, f := range []struct {
		into *int
		text string
	}{{&s.pid, pid}, {&s.parent, fields[1]}, {&s.ended, fields[13]}, {&s.ended, fields[14]}} {
		n, err := strconv.Atoi(f.text)
		if err != nil {
			return s, fmt.Errorf("%q is not a line of /proc/PID/stat: %w", text, err)
		}
		*f.into += n
	}
	return s, nil
}
