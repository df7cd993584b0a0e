// Package output opens the files that a command writes at its end, before its work begins: a
// long run must not end with a report that cannot be written.
package output

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// Files are the files of a report, in place of those without a path nothing.
type Files []io.WriteCloser

// Create opens a file for each path, in their order. What a file had before stays until it is
// written to; one that is new and never written to goes with Close.
func Create(paths ...string) (Files, error) {
	var files Files
	for _, path := range paths {
		if path == "" {
			files = append(files, nowhere{io.Discard})
			continue
		}
		f, err := open(path)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("report: %w", err), files.Close())
		}
		files = append(files, f)
	}
	return files, nil
}

// Close closes all of them.
func (f Files) Close() error {
	var all []error
	for _, file := range f {
		all = append(all, file.Close())
	}
	return errors.Join(all...)
}

type nowhere struct{ io.Writer }

func (nowhere) Close() error { return nil }

// file is one of a report.
type file struct {
	to      *os.File
	isNew   bool // it was not there before
	written bool
}

func open(path string) (*file, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if !errors.Is(err, fs.ErrExist) {
		return &file{to: f, isNew: true}, err
	}
	f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o666) // a link may lead to no file yet
	return &file{to: f}, err
}

func (f *file) Write(p []byte) (int, error) {
	if !f.written {
		if err := f.empty(); err != nil {
			return 0, err
		}
		f.written = true
	}
	return f.to.Write(p)
}

// empty takes out what was there before. A device has nothing to take out.
func (f *file) empty() error {
	info, err := f.to.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	return f.to.Truncate(0)
}

func (f *file) Close() error {
	err := f.to.Close()
	if f.isNew && !f.written {
		err = errors.Join(err, os.Remove(f.to.Name()))
	}
	return err
}
