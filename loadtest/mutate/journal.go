package mutate

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// journal keeps verdicts on disk as they are found, so that a run that was interrupted goes on
// where it ended. It is of one state of the package's sources, tests and test data.
type journal struct {
	file *os.File
	seen map[string]Verdict // by name
}

// openJournal reads what is kept for the package as it is now.
func openJournal(cfg Config) (*journal, error) {
	state, err := digest(cfg.Dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Work, 0o755); err != nil {
		return nil, err
	}
	path := filepath.Join(cfg.Work, strings.ReplaceAll(cfg.Package, "/", "-")+"-"+state+".jsonl")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	j := &journal{file: f, seen: map[string]Verdict{}}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var v Verdict
		if json.Unmarshal(lines.Bytes(), &v) == nil { // the last line may be cut off
			j.seen[v.Name] = v
		}
	}
	return j, nil
}

func (j *journal) write(v Verdict) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = j.file.Write(append(line, '\n'))
	return err
}

// digest is of the package's files, and those of its testdata.
func digest(dir string) (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != dir && filepath.Base(path) != "testdata" && !strings.Contains(path, "/testdata/"):
			return filepath.SkipDir // another package
		case d.IsDir():
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(h, "%s %d\n%s", path, len(content), content)
		return err
	})
	return hex.EncodeToString(h.Sum(nil)[:6]), err
}
