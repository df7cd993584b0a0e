package pd

import "fmt"

// Binding says when a request gets its servers.
type Binding string

const (
	OnArrival Binding = "arrival" // at once
	Late      Binding = "late"    // when the prefill server that is best for it is about to be free
)

// Validate reports what is wrong with the binding, nil if nothing.
func (b Binding) Validate() error {
	if b != OnArrival && b != Late {
		return fmt.Errorf("binding %q: want arrival or late", string(b))
	}
	return nil
}
