package process

import (
	"fmt"
	"os"
)

// CreateLog creates the file that processes write to. Without a path they write to the null
// device.
func CreateLog(path string) (*os.File, error) {
	if path == "" {
		path = os.DevNull
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("log of the processes: %w", err)
	}
	return f, nil
}
