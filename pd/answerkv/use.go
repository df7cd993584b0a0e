package answerkv

import "errors"

// Use says of which servers' answers the KV is used.
type Use string

const (
	Off      Use = "off"      // of none
	Reported Use = "reported" // of those that report that they keep it
	All      Use = "all"      // of all that may: their operator says that they keep it
)

// Validate reports what is wrong with it, nil if nothing.
func (u Use) Validate() error {
	if u != Off && u != Reported && u != All {
		return errors.New("answer-kv must be off, reported or all")
	}
	return nil
}
