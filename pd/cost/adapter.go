package cost

import (
	"errors"
	"time"
)

// AdapterCost is what a LoRA adapter costs a request on a server that is not at work
// on it already.
type AdapterCost struct {
	Load time.Duration // of one that the server lacks, until loads were seen
	Swap time.Duration // of one that it has, into the batch
	Slot time.Duration // until one of the adapters in a full batch makes way
}

// DefaultAdapterCost is for adapters of some tens of megabytes from local disk, into
// a batch whose answers take seconds.
func DefaultAdapterCost() AdapterCost {
	return AdapterCost{Load: time.Second, Swap: 10 * time.Millisecond, Slot: 2 * time.Second}
}

// Validate reports what is wrong with the costs, nil if nothing.
func (c AdapterCost) Validate() error {
	if c.Load < 0 || c.Swap < 0 || c.Slot < 0 {
		return errors.New("adapter-load, adapter-swap and adapter-place must not be negative")
	}
	return nil
}

// AdapterState is what is known of one adapter on one server.
type AdapterState struct {
	Loaded  bool          // the server has it, else it must be loaded first
	Running bool          // it is in the batch
	Full    bool          // the batch has as many adapters as it can, and not this one
	Waiting int           // adapters that wait for a place in the batch
	Evicts  bool          // to be loaded it must take the place of another one
	Load    time.Duration // what loading one took lately; 0 is unknown
}

// Wait is what an adapter costs on a server: nothing where it runs, the way into the
// batch where it is loaded, the load where it is not. Where another adapter must make
// way, a later request will have to load that one again. If the batch is full of others, a
// place in it for each that waits already and for this one.
func (c AdapterCost) Wait(v AdapterState) time.Duration {
	if v.Running {
		return 0
	}
	wait := c.Swap
	if !v.Loaded {
		load := c.Load
		if v.Load > 0 && c.Load > 0 {
			load = v.Load
		}
		wait += load
		if v.Evicts {
			wait += load
		}
	}
	if v.Full {
		wait += c.Slot * time.Duration(1+v.Waiting)
	}
	return wait
}
