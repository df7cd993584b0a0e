package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Programs are those that a cluster on this machine is started from.
type Programs struct {
	Gateway string // has the command serve: tandem
	Engine  string // has the command engine: tandem-lab
}

// Find returns this program, which has the engines, and the gateway's beside it.
func Find() (Programs, error) {
	self, err := os.Executable()
	if err != nil {
		return Programs{}, fmt.Errorf("find the own program: %w", err)
	}
	return beside(self)
}

func beside(self string) (Programs, error) {
	p := Programs{Gateway: filepath.Join(filepath.Dir(self), "tandem"), Engine: self}
	if _, err := os.Stat(p.Gateway); errors.Is(err, fs.ErrNotExist) {
		return Programs{}, fmt.Errorf("the gateway is started from %s, which is not there: build it beside %s (make build)", p.Gateway, filepath.Base(self))
	} else if err != nil {
		return Programs{}, fmt.Errorf("find the gateway's program: %w", err)
	}
	return p, nil
}
