package serving

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/tandem-gateway/tandem/cmd/internal/nearest"
	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/pools"
)

// readModels reads the settings of models and their load that are lists of texts.
func (c *config) readModels() error {
	if err := c.gateway.read(); err != nil {
		return err
	}
	if err := c.pools.read(); err != nil {
		return err
	}
	if err := c.pd.read(c.access.Classes); err != nil {
		return err
	}
	if err := c.scaling.read(&c.pd.Config); err != nil {
		return err
	}
	for model, setting := range c.namedModels() {
		if slices.ContainsFunc(c.gateway.Aliases, func(a gateway.Alias) bool { return a.Name == model }) {
			return fmt.Errorf("%s: %s is an alias: name the models behind it", setting, model)
		}
		if strings.HasPrefix(model, "class:") {
			return fmt.Errorf("%s: %s: no model, and only an objective can be a class's", setting, model)
		}
	}
	return nil
}

// namedModels are the models that have settings of their own, with the first that names them.
func (c *config) namedModels() map[string]string {
	named := make(map[string]string)
	for _, of := range []struct {
		setting string
		models  iter.Seq[string]
	}{
		{"objective", maps.Keys(c.pd.Objective.Models.Models)},
		{"ttft-slo", maps.Keys(c.pd.TTFT.Models)},
		{"itl-slo", maps.Keys(c.pd.ITL.Models)},
		{"scale-itl", maps.Keys(c.scaling.ITL.Models)},
	} {
		for model := range of.models {
			named[model] = cmp.Or(named[model], of.setting)
		}
	}
	return named
}

// unknownModels says which settings and keys are for a model that no server has, of those that servers have and adapters
// that may be loaded. Of an alias or a key that has another model it is a warning: that one is served. Where servers are
// found as they come, any may have it.
func (c *config) unknownModels(served []pools.Model, keys *access.Keys) (faults []error, warnings []string) {
	if c.findsServers() || c.discovery.kube.Enabled() {
		return nil, nil
	}
	known := make(map[string]bool)
	for _, m := range served {
		known[m.ID] = true
	}
	for _, a := range c.pools.Adapters.Directory {
		if slices.ContainsFunc(served, func(m pools.Model) bool { return m.ID == a.Name && m.Parent == "" }) {
			faults = append(faults, fmt.Errorf("adapter %s: servers have a model of that name, which would never be asked for the adapter; give the adapter another name", a.Name))
		}
		known[a.Name] = true
	}
	models := slices.Sorted(maps.Keys(known))
	named := c.namedModels()
	for model, setting := range c.kv.namedModels() {
		named[model] = cmp.Or(named[model], setting)
	}
	for _, model := range slices.Sorted(maps.Keys(named)) {
		if !known[model] {
			faults = append(faults, unknownModel(named[model], model, models))
		}
	}
	for _, a := range c.pools.Adapters.Directory {
		if a.Base != "" && !known[a.Base] {
			faults = append(faults, unknownModel("adapter "+a.Name, a.Base, models))
		}
	}
	for _, alias := range c.gateway.Aliases {
		some := slices.ContainsFunc(alias.Targets, func(t gateway.Target) bool { return known[t.Model] })
		for _, t := range alias.Targets {
			if known[t.Model] {
				continue
			}
			wrong := unknownModel("model-alias "+alias.Name, t.Model, models)
			if some {
				warnings = append(warnings, wrong.Error())
				continue
			}
			faults = append(faults, wrong)
		}
	}
	for _, alias := range c.gateway.Aliases {
		known[alias.Name] = true // to keys, whose models are names as clients send them
	}
	ofKeys, partly := unknownModelsOfKeys(keys, slices.Sorted(maps.Keys(known)))
	return append(faults, ofKeys...), append(warnings, partly...)
}

// unknownModelsOfKeys says which keys are for a model that is none of those that clients can ask for.
func unknownModelsOfKeys(keys *access.Keys, names []string) (faults []error, warnings []string) {
	if keys == nil {
		return nil, nil
	}
	for _, key := range keys.All() {
		unknown, others := key.UnknownModels(names)
		for _, model := range unknown {
			wrong := unknownModel("key "+key.ID+" of tenant "+key.Tenant, model, names)
			if others {
				warnings = append(warnings, wrong.Error())
				continue
			}
			faults = append(faults, wrong)
		}
	}
	return faults, warnings
}

// unknownModel is the error that what is set is for a model that is none of some.
func unknownModel(setting, model string, models []string) error {
	return fmt.Errorf("%s: no server has the model %s; there are %s%s", setting, model, strings.Join(models, ", "), nearest.Hint(model, models))
}
