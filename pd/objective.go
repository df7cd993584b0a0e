package pd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-gateway/tandem/pd/order"
)

// Objectives are what requests are served for. That of a class goes before that of a
// model; the zero value is order.Latency for all.
type Objectives struct {
	All     order.Objective
	Models  map[string]order.Objective
	Classes map[int]order.Objective
}

// ParseObjectives reads entries: an objective for all, model=objective, or
// class:name=objective with the name of one of the classes.
func ParseObjectives(entries, classes []string) (Objectives, error) {
	o := Objectives{All: order.Latency, Models: make(map[string]order.Objective), Classes: make(map[int]order.Objective)}
	for _, entry := range entries {
		whose, objective := "", order.Objective(entry)
		if i := strings.LastIndex(entry, "="); i >= 0 {
			whose, objective = entry[:i], order.Objective(entry[i+1:])
		}
		if err := objective.Validate(); err != nil {
			return Objectives{}, err
		}
		class, isClass := strings.CutPrefix(whose, "class:")
		switch number := slices.Index(classes, class); {
		case isClass && number < 0:
			return Objectives{}, fmt.Errorf("objective %q: no class of %q", entry, classes)
		case isClass:
			o.Classes[number] = objective
		case whose != "":
			o.Models[whose] = objective
		default:
			o.All = objective
		}
	}
	return o, nil
}

// of is the objective of a request.
func (o *Objectives) of(req *Request) order.Objective {
	if own, set := o.Classes[req.Class]; set {
		return own
	}
	if own, set := o.Models[req.Model]; set {
		return own
	}
	return o.All
}
