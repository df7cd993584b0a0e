package policy

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// keptRuns are the outcomes of earlier runs in a file, so that a comparison that was interrupted
// goes on where it was. A line is one run; what another program wrote goes when it is opened,
// and so does a line that was cut off.
type keptRuns struct {
	program string
	known   map[string]*Outcome // by the digest of all that it depends on
	file    *os.File
}

type keptRun struct {
	Program string   `json:"program"`
	Key     string   `json:"key"`
	Outcome *Outcome `json:"outcome"`
}

// openKeptRuns reads the runs of a program from a file, which it makes if there is none.
func openKeptRuns(path, program string) (*keptRuns, error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("runs of before: %w", err)
	}
	k := &keptRuns{program: program, known: make(map[string]*Outcome)}
	var kept bytes.Buffer
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var run keptRun
		if json.Unmarshal(lines.Bytes(), &run) != nil || run.Program != program || run.Outcome == nil {
			continue
		}
		k.known[run.Key] = run.Outcome
		kept.Write(append(lines.Bytes(), '\n'))
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("runs of before, %s: %w", path, err)
	}
	if k.file, err = os.Create(path); err == nil {
		_, err = k.file.Write(kept.Bytes())
	}
	return k, err
}

// add writes a run down; calls are one after the other.
func (k *keptRuns) add(key string, o *Outcome) error {
	line, err := json.Marshal(keptRun{Program: k.program, Key: key, Outcome: o})
	if err != nil {
		return fmt.Errorf("keep a run: %w", err)
	}
	_, err = k.file.Write(append(line, '\n'))
	return err
}

// runKey is a digest of all that the outcome of a run depends on beside the program: the requests,
// the scenario, the policy and the seed.
func runKey(trace, scenario, policy string, seed uint64) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s\n%d", trace, scenario, policy, seed))
	return hex.EncodeToString(sum[:16])
}

// digest tells a trace from others.
func (t *Trace) digest() string {
	sum := sha256.New()
	for i := range t.Requests {
		_, _ = fmt.Fprintln(sum, t.Requests[i]) // a hash takes everything
	}
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

// digest tells a load from others: a generated one by what it is generated from.
func (l *load) digest() (string, error) {
	if l.fixed != nil {
		return l.fixed.digest(), nil
	}
	text, err := json.Marshal(struct {
		Workload *Workload
		Spread   bool
		Limit    int
	}{l.workload, l.workload.spread, l.limit})
	return string(text), err
}
