package pd

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pools/permodel"
)

// SLO is what a request's answer is judged by, 0 is none. The nearest counts:
//
//	of the request     its header, where its key may set that, else its key's (access.Control.PolicyFor)
//	of its model       also 0, to have none
//	of its base model  where it is an adapter; base is the model itself otherwise
//	of all
//
// A model is one that servers have: behind an alias or a split it is the one that was picked.
// The deadline is none of them: a choice that is only just in time would be bought at the cost
// of others, and under overload all are late.
func (c *BindConfig) SLO(req *Request, base string) (ttft, itl time.Duration) {
	ttft, itl = req.TTFT, req.ITL
	if ttft == 0 {
		ttft = c.TTFT.Of(req.Model, base)
	}
	if itl == 0 {
		itl = c.ITL.Of(req.Model, base)
	}
	return ttft, itl
}

// Objectives are what requests are served for. That of a class goes before that of a
// model; the zero value is order.Auto for all.
type Objectives struct {
	Models  permodel.Setting[order.Objective]
	Classes map[int]order.Objective
}

// ParseObjectives reads entries: an objective for all, model=objective, or
// class:name=objective with the name of one of the classes.
func ParseObjectives(entries, classes []string) (o Objectives, err error) {
	o.Classes = make(map[int]order.Objective)
	var ofModels []string
	for _, entry := range entries {
		class, isClass := strings.CutPrefix(entry, "class:")
		if !isClass {
			ofModels = append(ofModels, entry)
			continue
		}
		name, objective, _ := strings.Cut(class, "=")
		number := slices.Index(classes, name)
		if number < 0 {
			return Objectives{}, fmt.Errorf("objective %q: no class of %q", entry, classes)
		}
		if o.Classes[number], err = readObjective(objective); err != nil {
			return Objectives{}, fmt.Errorf("objective %q: %w", entry, err)
		}
	}
	if o.Models, err = permodel.Parse("objective", ofModels, order.Auto, readObjective); err != nil {
		return Objectives{}, err
	}
	return o, nil
}

func readObjective(text string) (order.Objective, error) {
	o := order.Objective(text)
	return o, o.Validate()
}

// of is the objective of a request for a model whose base is the other.
func (o *Objectives) of(req *Request, base string) order.Objective {
	if own, set := o.Classes[req.Class]; set {
		return own
	}
	return o.Models.Of(req.Model, base)
}
