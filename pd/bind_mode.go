package pd

import "fmt"

// BindMode says when a request gets its servers.
type BindMode string

const (
	OnArrival BindMode = "arrival" // at once
	Late      BindMode = "late"    // when the prefill server that is best for it is about to be free
)

// Validate reports what is wrong with the binding, nil if nothing.
func (b BindMode) Validate() error {
	if b != OnArrival && b != Late {
		return fmt.Errorf("binding %q: want arrival or late", string(b))
	}
	return nil
}
