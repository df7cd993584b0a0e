package discovery

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/tandem-gateway/tandem/pools"
)

// Sources makes one fleet of the servers that several sources know: the
// configuration first, then what discovery finds. Each source reports all of its
// servers every time, and knows nothing of the others.
type Sources struct {
	fleet *pools.Fleet
	log   *slog.Logger

	mu       sync.Mutex // guards reported, and keeps calls of Apply in order
	reported []report
}

// report is what one source knows.
type report struct {
	source string
	specs  []pools.Spec
	hidden []string // IDs of its servers that an earlier source has already
}

// NewSources returns the sources of a fleet, which nothing else may Apply to.
func NewSources(fleet *pools.Fleet, log *slog.Logger) *Sources {
	return &Sources{fleet: fleet, log: log}
}

// Set makes specs all that a source knows. An error changes nothing. A server that
// two sources know is as reported by the source that reported first since the start.
func (s *Sources) Set(source string, specs []pools.Spec) error {
	if err := pools.ValidateSpecs(specs); err != nil {
		return fmt.Errorf("servers from %s: %w", source, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.reported, func(o report) bool { return o.source == source })
	if i < 0 {
		i = len(s.reported)
		s.reported = append(s.reported, report{source: source})
	}
	s.reported[i].specs = specs
	return s.fleet.Apply(s.joinLocked())
}

// joinLocked returns the servers of all sources, each once. Servers that are newly
// hidden by an earlier source are logged.
func (s *Sources) joinLocked() []pools.Spec {
	var all []pools.Spec
	from := make(map[string]string)
	for i := range s.reported {
		next := &s.reported[i]
		var hidden []string
		for _, spec := range next.specs {
			id := spec.ID()
			if earlier, known := from[id]; known {
				hidden = append(hidden, id)
				if !slices.Contains(next.hidden, id) {
					s.log.Warn("a server is known from two sources, the first counts", "server", id, "first", earlier, "second", next.source)
				}
				continue
			}
			from[id] = next.source
			all = append(all, spec)
		}
		next.hidden = hidden
	}
	return all
}
