package serving

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

// quietTime lets an editor or a mounted ConfigMap finish writing.
const quietTime = 200 * time.Millisecond

// fileWatch notifies when a file should be read again: its content differs from
// what was read last, or SIGHUP came.
type fileWatch struct {
	file    string
	last    []byte // hash of what was read last
	dir     *fsnotify.Watcher
	hangup  chan os.Signal
	changes chan struct{}
}

// watchFile watches until the context ends and then closes the channel. The
// directory is watched and not the file: editors and Kubernetes replace files.
func watchFile(ctx context.Context, file string, last []byte) (<-chan struct{}, error) {
	dir, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", file, err)
	}
	if err := dir.Add(filepath.Dir(file)); err != nil {
		return nil, fmt.Errorf("watch %s: %w", file, err)
	}
	w := &fileWatch{file: file, last: last, dir: dir, hangup: make(chan os.Signal, 1), changes: make(chan struct{})}
	signal.Notify(w.hangup, syscall.SIGHUP)
	go w.run(ctx)
	return w.changes, nil
}

func (w *fileWatch) run(ctx context.Context) {
	defer close(w.changes)
	defer func() { _ = w.dir.Close() }()
	defer signal.Stop(w.hangup)
	settle := time.NewTimer(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.dir.Events:
			settle.Reset(quietTime)
		case err := <-w.dir.Errors:
			if err != nil { // events were lost, most likely: look at the file
				settle.Reset(quietTime)
			}
		case <-settle.C:
			if !bytes.Equal(contentHash(w.file), w.last) {
				w.notify(ctx)
			}
		case <-w.hangup:
			w.notify(ctx)
		}
	}
}

func (w *fileWatch) notify(ctx context.Context) {
	w.last = contentHash(w.file)
	select {
	case w.changes <- struct{}{}:
	case <-ctx.Done():
	}
}

// contentHash returns nil for a file that cannot be read.
func contentHash(file string) []byte {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	sum := sha256.Sum256(content)
	return sum[:]
}
