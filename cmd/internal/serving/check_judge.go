package serving

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/health"
)

// judge says what will not work of what the servers answered: faults leave requests, keys or
// servers unserved, or do what the configuration asks for in vain. Keys are nil where none is asked for.
func judge(cfg *config, keys *access.Keys, answers []checkedServer) (faults []error, warnings []string) {
	var up []*pools.Server
	var models, published []pools.Model // the latter of servers that publish KV events
	for i := range answers {
		a := &answers[i]
		if a.events != nil {
			faults = append(faults, fmt.Errorf("server %s: its KV events cannot be received: %w", a.spec.ID(), a.events))
		}
		warnings = append(warnings, loadWarnings(a)...)
		if a.down != nil {
			faults = append(faults, downFault(cfg, a))
			continue
		}
		up = append(up, a.probed.Server)
		models = append(models, a.probed.Health().Models...)
		if a.probed.Published().Events != "" {
			published = append(published, a.probed.Health().Models...)
		}
	}
	warnings = append(warnings, sameEngines(answers)...)
	wrong, unused := sharedEventAddresses(up)
	faults, warnings = append(faults, wrong...), append(warnings, unused...)
	wrong, unused = cfg.kv.checkTokenizers(published)
	faults, warnings = append(faults, wrong...), append(warnings, unused...)
	if len(up) < len(answers) {
		return faults, warnings // what the others lack, these may have
	}
	unknown, partly := cfg.unknownModels(models, keys)
	faults, warnings = append(faults, unknown...), append(warnings, partly...)
	if cfg.findsServers() {
		return faults, append(warnings, "servers that are found while serving (by name, registered or announced) are not checked")
	}
	if cfg.ports.picker != "" {
		warnings = append(warnings, withoutSidecar(up)...)
	}
	missing, alone := rolesComplete(cfg, up)
	return slices.Concat(faults, missing, pairsExist(up)), append(warnings, alone...)
}

// loadWarnings says where a server's load is not to be had, of the addresses that its configuration names.
func loadWarnings(a *checkedServer) (warnings []string) {
	switch {
	case a.down != nil: // it was asked for no load
	case a.probed.Metrics != nil:
		warnings = append(warnings, fmt.Sprintf("server %s: its metrics at %s cannot be read: %v", a.spec.ID(), a.spec.Metrics, a.probed.Metrics))
	case a.spec.Metrics != "" && !a.probed.Load.Known():
		warnings = append(warnings, fmt.Sprintf("server %s: no load that is known is among its metrics at %s (load-metric names others)", a.spec.ID(), a.spec.Metrics))
	}
	if a.orca != nil {
		warnings = append(warnings, fmt.Sprintf("server %s: no load report comes from its OpenRcaService at %s: %v", a.spec.ID(), a.spec.ORCA, a.orca))
	}
	return warnings
}

// sharedEventAddresses names the servers that have the address of KV events of another. Of engines that connect to one
// nothing is believed.
func sharedEventAddresses(servers []*pools.Server) (faults []error, warnings []string) {
	owners := make(map[string]string) // by address
	for _, s := range servers {
		at := s.Published()
		if at.Events == "" || at.Bind && hasAnyPort(at.Events) {
			continue
		}
		for _, feed := range feedsOf(at) {
			const shared = "servers %s and %s, at %s: %s"
			switch owner := owners[feed.Events]; {
			case owner == "", owner == s.ID():
				owners[feed.Events] = s.ID()
			case at.Bind:
				faults = append(faults, fmt.Errorf(shared, owner, s.ID(), feed.Events, oneBoundAddress))
			default:
				warnings = append(warnings, fmt.Sprintf(shared, owner, s.ID(), feed.Events, oneEventAddress))
			}
		}
	}
	return faults, warnings
}

// downFault says why a server does not answer, and the setting that helps.
func downFault(cfg *config, a *checkedServer) error {
	switch {
	case a.scheme != "":
		return fmt.Errorf("server %s does not answer: %w: %s", a.spec.ID(), a.down, a.scheme)
	case health.IsLoop(a.down):
		return fmt.Errorf("server %s: %w", a.spec.ID(), a.down)
	case !health.AsksForKey(a.down):
		return fmt.Errorf("server %s does not answer: %w", a.spec.ID(), a.down)
	case cfg.engines.key != "":
		return fmt.Errorf("server %s: %w: it does not take the key in %s (engine-key-file)", a.spec.ID(), a.down, cfg.engines.key)
	}
	return fmt.Errorf("server %s: %w: it asks for a key, set engine-key-file to the file that holds it", a.spec.ID(), a.down)
}

// findsServers reports whether there may be servers that the configuration does not name.
func (c *config) findsServers() bool {
	return len(c.names()) > 0 || c.discovery.registry || c.discovery.nccl != ""
}

// modelRoles are the servers of a base model by role.
type modelRoles struct {
	prefill, decode bool
	alone           bool // some of those that decode serve requests whole
}

// rolesComplete names the models without a role that they need. It is a fault where their requests will be
// refused, and a warning where servers may come, as serve accepts that.
func rolesComplete(cfg *config, servers []*pools.Server) (faults []error, warnings []string) {
	report := func(what, then string) {
		if cfg.serversMayCome() {
			warnings = append(warnings, what+": until one comes, requests wait or are refused")
			return
		}
		faults = append(faults, errors.New(what+": "+then))
	}
	if len(servers) == 0 {
		report("there is no server", "every request will be refused")
	}
	roles := rolesOf(servers, cfg.pd.EnforceDisaggregation)
	for _, model := range slices.Sorted(maps.Keys(roles)) {
		switch r := roles[model]; {
		case !r.decode:
			report(fmt.Sprintf("model %s has no decode server that takes requests", model), "every one for it will be refused")
		case r.prefill:
		case !r.alone:
			report(fmt.Sprintf("model %s has no prefill server, and its decode servers compute no prompts", model), "every request for it will be refused")
		default:
			warnings = append(warnings, fmt.Sprintf("model %s has no prefill server: its decode servers compute all prompts", model))
		}
	}
	return faults, warnings
}

// rolesOf are the roles of the servers of each base model, of those that take requests. Where disaggregation is enforced
// decode servers that make pairs serve none whole.
func rolesOf(servers []*pools.Server, enforced bool) map[string]*modelRoles {
	roles := make(map[string]*modelRoles)
	for _, s := range servers {
		for _, m := range s.Health().Models {
			if m.Parent != "" {
				continue
			}
			if roles[m.ID] == nil {
				roles[m.ID] = new(modelRoles)
			}
			if s.Drains() {
				continue // it takes no request, and its model is there all the same
			}
			r := roles[m.ID]
			r.prefill = r.prefill || s.Role.Serves(pools.Prefill)
			r.decode = r.decode || s.Role.Serves(pools.Decode)
			r.alone = r.alone || s.Role.Serves(pools.Decode) && s.ServesAlone() && !(enforced && connector.Of(s).Pairs)
		}
	}
	return roles
}

// withoutSidecar names the models with prefill servers that the picker sends no prompt to: a proxy sends a request to one
// server, and of those that decode only llm-d's sidecar asks another one for the prompt.
func withoutSidecar(servers []*pools.Server) (warnings []string) {
	prefills, asks := make(map[string]bool), make(map[string]bool)
	for _, s := range servers {
		for _, m := range s.Health().Models {
			prefills[m.ID] = prefills[m.ID] || m.Parent == "" && s.Role == pools.Prefill
			asks[m.ID] = asks[m.ID] || s.Role.Serves(pools.Decode) && connector.Of(s).DecodeDriven
		}
	}
	for _, model := range slices.Sorted(maps.Keys(prefills)) {
		if prefills[model] && !asks[model] {
			warnings = append(warnings, fmt.Sprintf("model %s: the picker sends no prompt to its prefill servers, as none of its decode servers has the connector llmd-sidecar", model))
		}
	}
	return warnings
}

// pairsExist names the models whose prefill and decode servers cannot use each other's KV.
func pairsExist(servers []*pools.Server) (faults []error) {
	pairings := pools.Pairings(servers)
	for _, model := range slices.Sorted(maps.Keys(pairings)) {
		if p := pairings[model]; p.Missing() {
			faults = append(faults, fmt.Errorf("model %s: no prefill and decode server make a pair, %s and %s come closest and differ in %s",
				model, p.Prefill, p.Decode, p.Reason()))
		}
	}
	return faults
}
