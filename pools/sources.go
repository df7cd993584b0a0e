package pools

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
)

// Sources makes one fleet of the servers that several sources know: the
// configuration first, then what discovery finds. Each source says all of its
// servers every time, and knows nothing of the others.
type Sources struct {
	fleet *Fleet
	log   *slog.Logger

	mu   sync.Mutex // guards said, and keeps calls of Apply in order
	said []sourceSaid
}

type sourceSaid struct {
	source string
	specs  []Spec
	hidden []string // IDs of its servers that an earlier source has already
}

// NewSources returns the sources of a fleet, which nothing else may Apply to.
func NewSources(fleet *Fleet, log *slog.Logger) *Sources {
	return &Sources{fleet: fleet, log: log}
}

// Set makes specs all that a source knows. An error changes nothing. A server that
// two sources know is as the one says that spoke first since the start.
func (s *Sources) Set(source string, specs []Spec) error {
	if err := ValidateSpecs(specs); err != nil {
		return fmt.Errorf("servers from %s: %w", source, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.said, func(o sourceSaid) bool { return o.source == source })
	if i < 0 {
		i = len(s.said)
		s.said = append(s.said, sourceSaid{source: source})
	}
	s.said[i].specs = specs
	return s.fleet.Apply(s.joinLocked())
}

// joinLocked returns the servers of all sources, each once. Servers that are newly
// hidden by an earlier source are logged.
func (s *Sources) joinLocked() []Spec {
	var all []Spec
	from := make(map[string]string)
	for i := range s.said {
		said := &s.said[i]
		var hidden []string
		for _, spec := range said.specs {
			id := spec.ID()
			if earlier, known := from[id]; known {
				hidden = append(hidden, id)
				if !slices.Contains(said.hidden, id) {
					s.log.Warn("a server is known from two sources, the first counts", "server", id, "first", earlier, "second", said.source)
				}
				continue
			}
			from[id] = said.source
			all = append(all, spec)
		}
		said.hidden = hidden
	}
	return all
}
