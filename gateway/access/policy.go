package access

import (
	"cmp"
	"fmt"
	"strconv"
	"time"
)

// The headers in which a client asks for a policy of its request.
const (
	PriorityHeader = "X-Tandem-Priority"    // name of a class
	DeadlineHeader = "X-Tandem-Deadline-Ms" // until the first content, from the request's arrival
	TTFTHeader     = "X-Tandem-Ttft-Slo-Ms" // objectives
	ITLHeader      = "X-Tandem-Itl-Slo-Ms"

	// FairnessHeader names for whom a request is, where its sender may say so: within a class those
	// take turns. ObjectiveHeader names an InferenceObjective. Both are llm-d's, and have an older
	// name (llm-d-router pkg/epp/metadata/consts.go, August 2026).
	FairnessHeader     = "X-Llm-D-Inference-Fairness-Id"
	OldFairnessHeader  = "X-Gateway-Inference-Fairness-Id"
	ObjectiveHeader    = "X-Llm-D-Inference-Objective"
	OldObjectiveHeader = "X-Gateway-Inference-Objective"
)

// RequestedPolicy is those headers as they came, "" where absent.
type RequestedPolicy struct {
	Priority, Deadline, TTFT, ITL, Fairness string
	// Level is the priority of the InferenceObjective that the request names, nil if it names none
	// that is there. A class that the request names goes before it.
	Level *int
}

// Policy is how a request is served: what its key says, changed by what its headers ask
// for as far as the key allows.
type Policy struct {
	Class     int
	Tenant    string        // whose turn the request takes
	Deadline  time.Time     // zero: none
	TTFT, ITL time.Duration // its own objectives, 0 where it has those of its model
}

// HeaderError is a header that cannot be read.
type HeaderError struct{ Header, Want string }

func (e *HeaderError) Error() string {
	return fmt.Sprintf("The header %s must be %s.", e.Header, e.Want)
}

// PolicyFor returns the policy of a request. Every client may ask for a lower class or an
// earlier deadline than its key's: neither is at the cost of others. What the key does not
// allow is ignored; what cannot be read is an error (*HeaderError).
func (c *Control) PolicyFor(k *Key, asked RequestedPolicy, now time.Time) (Policy, error) {
	p := Policy{Class: k.Class, Tenant: k.Tenant, TTFT: k.TTFT, ITL: k.ITL}
	class, err := c.requestedClass(k, asked)
	if err != nil {
		return Policy{}, err
	}
	if class > k.Class || k.MaySet.Priority {
		p.Class = class
	}
	if k.MaySet.Tenant && asked.Fairness != "" {
		if len(asked.Fairness) > maxTenant {
			return Policy{}, &HeaderError{FairnessHeader, fmt.Sprintf("a name of at most %d bytes", maxTenant)}
		}
		p.Tenant = asked.Fairness
	}
	deadline, err := milliseconds(DeadlineHeader, asked.Deadline)
	if err != nil {
		return Policy{}, err
	}
	if deadline == 0 || k.Deadline > 0 && deadline > k.Deadline && !k.MaySet.Deadline {
		deadline = k.Deadline
	}
	if deadline > 0 {
		p.Deadline = now.Add(deadline)
	}
	if !k.MaySet.Objectives {
		return p, nil
	}
	ttft, err := milliseconds(TTFTHeader, asked.TTFT)
	if err != nil {
		return Policy{}, err
	}
	itl, err := milliseconds(ITLHeader, asked.ITL)
	if err != nil {
		return Policy{}, err
	}
	p.TTFT, p.ITL = cmp.Or(ttft, p.TTFT), cmp.Or(itl, p.ITL)
	return p, nil
}

// maxTenant bounds the name of a tenant that a request gives, in bytes.
const maxTenant = 128

// requestedClass is the class that a request asks for, its key's where it asks for none.
func (c *Control) requestedClass(k *Key, asked RequestedPolicy) (int, error) {
	if asked.Priority == "" {
		if asked.Level == nil {
			return k.Class, nil
		}
		return c.classAt(*asked.Level), nil
	}
	class := c.classOf(asked.Priority)
	if class < 0 {
		return 0, &HeaderError{PriorityHeader, fmt.Sprintf("one of %q", c.cfg.Classes)}
	}
	return class, nil
}

// classAt is the class of an InferenceObjective's priority: 0 is the default class, 1 the one before
// it, -1 the one behind it, and so on; the first and the last class take what is beyond them.
func (c *Control) classAt(priority int) int {
	last := len(c.cfg.Classes) - 1
	return min(max(c.classOf(c.cfg.Class)-min(max(priority, -last), last), 0), last)
}

// maxDuration bounds a time that a request asks for.
const maxDuration = 24 * time.Hour

// milliseconds reads a time, 0 where the header is absent.
func milliseconds(header, value string) (time.Duration, error) {
	if value == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < 1 || n > maxDuration.Milliseconds() {
		return 0, &HeaderError{header, "a whole number of milliseconds, from 1 to those of a day"}
	}
	return time.Duration(n) * time.Millisecond, nil
}
