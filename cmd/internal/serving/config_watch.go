package serving

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// quietTime lets an editor or a mounted ConfigMap finish writing.
	quietTime = 200 * time.Millisecond
	// maxSettle is how long it is waited for where other files of the directory never rest.
	maxSettle = time.Second
	// lookInterval is the time between two looks at the file itself, which may be a link to one elsewhere, or lie in a
	// directory that another one has taken the place of, or that cannot be watched: nothing tells of a change there.
	lookInterval = 2 * time.Second
)

// fileWatch notifies when a file should be read again: its content differs from
// what was read last, or SIGHUP came.
type fileWatch struct {
	file    string
	last    []byte            // hash of what was read last
	dir     *fsnotify.Watcher // nil: the directory cannot be watched
	hangup  chan os.Signal
	changes chan struct{}
}

// watchFile watches until the context ends and then closes the channel. The
// directory is watched and not the file: editors and Kubernetes replace files.
// What is not seen there is seen by a look at the file now and then: all of it
// where the user's other processes have used up what the kernel watches for one.
func watchFile(ctx context.Context, file string, last []byte, log *slog.Logger) <-chan struct{} {
	w := &fileWatch{file: file, last: last, hangup: make(chan os.Signal, 1), changes: make(chan struct{})}
	var err error
	if w.dir, err = watchDirectory(filepath.Dir(file)); err != nil {
		log.Warn("a file's directory cannot be watched, the file is looked at instead", "file", file, "interval", lookInterval.String(), "error", err.Error())
	}
	signal.Notify(w.hangup, syscall.SIGHUP)
	go w.run(ctx)
	return w.changes
}

// watchDirectory returns a watcher of a directory, nil with an error.
func watchDirectory(name string) (*fsnotify.Watcher, error) {
	dir, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", name, err)
	}
	if err := dir.Add(name); err != nil {
		_ = dir.Close()
		return nil, fmt.Errorf("watch %s: %w", name, err)
	}
	return dir, nil
}

func (w *fileWatch) run(ctx context.Context) {
	defer close(w.changes)
	defer signal.Stop(w.hangup)
	var events <-chan fsnotify.Event
	var failures <-chan error
	if w.dir != nil {
		defer func() { _ = w.dir.Close() }()
		events, failures = w.dir.Events, w.dir.Errors
	}
	settle, look := time.NewTimer(0), time.NewTicker(lookInterval)
	defer look.Stop()
	var since time.Time // when another file changed first; zero: none has
	wait := func() {
		if since.IsZero() {
			since = time.Now()
		}
		settle.Reset(min(quietTime, time.Until(since.Add(maxSettle))))
	}
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-events:
			if filepath.Base(event.Name) == filepath.Base(w.file) { // it is being written: as long as that takes
				since = time.Time{}
			}
			wait()
		case err := <-failures:
			if err != nil { // events were lost, most likely: look at the file
				wait()
			}
		case <-look.C:
			if w.differs() {
				wait()
			}
		case <-settle.C:
			if since = (time.Time{}); w.differs() {
				w.notify(ctx)
			}
		case <-w.hangup:
			w.notify(ctx)
		}
	}
}

// differs reports whether the file is not what was read last.
func (w *fileWatch) differs() bool { return !bytes.Equal(contentHash(w.file), w.last) }

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
