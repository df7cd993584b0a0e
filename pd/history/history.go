package history

import (
	"slices"
	"sync"
	"time"
)

const (
	// Step is the time that one point stands for, Steps how many are kept.
	Step  = 10 * time.Second
	Steps = 90
	// maxModels bounds the memory: further models are kept together, as Others.
	maxModels = 16
	// idleFor is after which time without a record the place of a model is another's, where there is none.
	idleFor = time.Minute
)

// Others is the name of the models for which there was no place.
const Others = "(other models)"

// History is what requests took lately, by model. nil keeps nothing.
type History struct {
	mu     sync.Mutex // guards models
	models map[string]*Series
}

// New returns a history in which nothing has happened.
func New() *History { return &History{models: make(map[string]*Series)} }

// Model is the series of a model, to record in; nil of a nil history. Where there are too many, one that has been idle
// makes place for it: adapters come and go.
func (h *History) Model(name string, now time.Time) *Series {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.models[name]
	if s != nil {
		return s
	}
	if len(h.models) >= maxModels && !h.makePlaceLocked(now) {
		name = Others
	}
	return h.seriesLocked(name, now)
}

func (h *History) seriesLocked(name string, now time.Time) *Series {
	s := h.models[name]
	if s == nil {
		s = &Series{recorded: now}
		h.models[name] = s
	}
	return s
}

// makePlaceLocked counts the model that has been idle for longest with the others, and reports whether there is one.
func (h *History) makePlaceLocked(now time.Time) bool {
	idle, since := "", now.Add(-idleFor)
	for name, s := range h.models {
		if recorded := s.lastRecorded(); name != Others && !recorded.After(since) {
			idle, since = name, recorded
		}
	}
	if idle == "" {
		return false
	}
	h.models[idle].moveTo(h.seriesLocked(Others, now))
	delete(h.models, idle)
	return true
}

// Models are the models of which something is kept, by name, Others last.
func (h *History) Models() []string {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	names := make([]string, 0, len(h.models))
	for name := range h.models {
		if name != Others {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if h.models[Others] != nil {
		names = append(names, Others)
	}
	return names
}

// View is what a model's requests took, oldest step first, and all steps together; the model "" is
// all of them. The step that contains now is the last one, and not over.
func (h *History) View(model string, now time.Time) View {
	return h.Counts(model, now).View()
}

// Counts are those of a model, of all with "", up to the step that contains now.
func (h *History) Counts(model string, now time.Time) *Counts {
	c := NewCounts(now)
	if h == nil {
		return c
	}
	h.mu.Lock()
	series := make([]*Series, 0, len(h.models))
	for name, s := range h.models {
		if model == "" || model == name {
			series = append(series, s)
		}
	}
	h.mu.Unlock()
	for _, s := range series {
		s.addTo(c)
	}
	return c
}

// lately is how many of the newest steps View.Lately is of: a minute.
const lately = int(time.Minute / Step)

// View is the history of one model, or of all.
type View struct {
	Points []Point // Steps of them, oldest first
	Lately Point   // the last minute, the step that is not over included
}

// numberOf is the number of the step that contains a time, since 1970.
func numberOf(t time.Time) int64 { return t.Unix() / int64(Step/time.Second) }
