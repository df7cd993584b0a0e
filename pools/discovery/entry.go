package discovery

import (
	"fmt"
	"strings"

	"github.com/tandem-gateway/tandem/pools"
)

// Entry is a server as people and programs write it: in the configuration's lists,
// and as JSON where servers register themselves. Only the URL must be there, and
// where nothing else says the role, that.
type Entry struct {
	URL       string `yaml:"url" json:"url"`
	Role      string `yaml:"-" json:"role,omitempty"` // prefill, decode or both
	Rank      *int   `yaml:"rank" json:"rank,omitempty"`
	Connector string `yaml:"connector" json:"connector,omitempty"`
	KVAddress string `yaml:"kv-address" json:"kv-address,omitempty"`
	Weights   string `yaml:"weights" json:"weights,omitempty"`
	Store     string `yaml:"store" json:"store,omitempty"`
	Group     string `yaml:"group" json:"group,omitempty"`
	Native    bool   `yaml:"native" json:"native,omitempty"`
	Layout    string `yaml:"layout" json:"layout,omitempty"`
	Metrics   string `yaml:"metrics" json:"metrics,omitempty"`
	ORCA      string `yaml:"orca" json:"orca,omitempty"`
	Variant   string `yaml:"variant" json:"variant,omitempty"`
	Elastic   bool   `yaml:"elastic" json:"elastic,omitempty"`
	GPUs      string `yaml:"gpus" json:"gpus,omitempty"`
	Host      string `yaml:"host" json:"host,omitempty"`
	Rack      string `yaml:"rack" json:"rack,omitempty"`
	Zone      string `yaml:"zone" json:"zone,omitempty"`
	Drain     bool   `yaml:"drain" json:"drain,omitempty"`
	Events    string `yaml:"events" json:"events,omitempty"`
	Replay    string `yaml:"replay" json:"replay,omitempty"`
	EventBind bool   `yaml:"events-bind" json:"events-bind,omitempty"`

	EventRanks int `yaml:"events-ranks" json:"events-ranks,omitempty"`
}

// Spec returns the server as the fleet takes it, in a role.
func (e Entry) Spec(role pools.Role) pools.Spec {
	return pools.Spec{
		URL: strings.TrimRight(e.URL, "/"), Rank: e.Rank, Role: role, Connector: e.Connector,
		KVAddress: e.KVAddress, Store: e.Store, Group: e.Group, Native: e.Native, Weights: e.Weights, Layout: e.Layout,
		Variant: e.Variant, Elastic: e.Elastic, GPUs: e.GPUs, Metrics: e.Metrics, ORCA: e.ORCA, Host: e.Host, Rack: e.Rack, Zone: e.Zone, Drain: e.Drain,
		Events: e.Events, Replay: e.Replay, EventBind: e.EventBind, EventRanks: e.EventRanks,
	}
}

// ParseRole reads a role's name.
func ParseRole(name string) (pools.Role, error) {
	for _, role := range []pools.Role{pools.Prefill, pools.Decode, pools.Both} {
		if role.String() == name {
			return role, nil
		}
	}
	return 0, fmt.Errorf("role %q: want prefill, decode or both", name)
}
