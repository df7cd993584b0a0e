// Package output opens the files that a command writes at its end, before its work begins: a
// long run must not end with a report that cannot be written.
package output

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// Files are the files of a report, in place of those without a path nothing.
type Files []io.WriteCloser

// Create creates a file for each path, in their order.
func Create(paths ...string) (Files, error) {
	var files Files
	for _, path := range paths {
		if path == "" {
			files = append(files, nowhere{io.Discard})
			continue
		}
		f, err := os.Create(path)
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
