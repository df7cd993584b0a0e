package serving

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/discovery"
)

// serverChanges are the servers of the configuration that differ from those of the one before.
type serverChanges struct {
	added, removed []string
	changed        []string // with the settings that did
}

func changesOf(old, next []pools.Spec) (c serverChanges) {
	before := make(map[string]pools.Spec, len(old))
	for _, spec := range old {
		before[listedAs(spec)] = spec
	}
	for _, spec := range next {
		name := listedAs(spec)
		was, there := before[name]
		delete(before, name)
		settings := changedSettings(was, spec)
		switch {
		case !there:
			c.added = append(c.added, name)
		case len(settings) > 0:
			c.changed = append(c.changed, name+": "+strings.Join(settings, ", "))
		}
	}
	c.removed = slices.Sorted(maps.Keys(before))
	return c
}

// listedAs tells the servers of the configuration apart. A name for any number of them may be listed in several roles.
func listedAs(spec pools.Spec) string {
	if discovery.IsName(spec) {
		return spec.Role.String() + " " + spec.URL
	}
	return spec.ID()
}

// changedSettings are the settings in which a server differs, as the configuration calls them.
func changedSettings(a, b pools.Spec) (names []string) {
	before, now, entry := reflect.ValueOf(a), reflect.ValueOf(b), reflect.TypeFor[serverEntry]()
	for i := range entry.NumField() {
		setting := entry.Field(i)
		if reflect.DeepEqual(before.FieldByName(setting.Name).Interface(), now.FieldByName(setting.Name).Interface()) {
			continue
		}
		name, _, _ := strings.Cut(setting.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

// maxNamed is how many servers a line of the log names.
const maxNamed = 10

// fields are the changes as keys and values of a line of the log, none for what did not change.
func (c serverChanges) fields() (fields []any) {
	for _, of := range []struct {
		key   string
		names []string
	}{{"added", c.added}, {"removed", c.removed}, {"changed", c.changed}} {
		names := of.names
		if more := len(names) - maxNamed; more > 0 {
			names = append(names[:maxNamed:maxNamed], fmt.Sprintf("and %d more", more))
		}
		if len(names) > 0 {
			fields = append(fields, of.key, names)
		}
	}
	return fields
}
