package pools

import "time"

// ReplicaWork is what other gateways have on the servers, as they report it.
type ReplicaWork interface {
	// InFlight is what they have on one server.
	InFlight(server string, leg Role, now time.Time) InFlight
	// Busy is how many of them have anything in flight.
	Busy(now time.Time) int
}

// SetReplicaWork adds what other gateways have to the work on the servers; nil: none is known.
func (f *Fleet) SetReplicaWork(w ReplicaWork) {
	if w == nil {
		f.replicas.Store(nil)
		return
	}
	f.replicas.Store(&w)
}

// OthersBusy reports whether other gateways have work in flight, as far as this one knows.
func (f *Fleet) OthersBusy(now time.Time) bool {
	w := f.replicas.Load()
	return w != nil && (*w).Busy(now) > 0
}

// othersInFlight is the work of other gateways on the server.
func (s *Server) othersInFlight(leg Role, now time.Time) InFlight {
	if w := s.fleet.replicas.Load(); w != nil {
		return (*w).InFlight(s.id, leg, now)
	}
	return InFlight{}
}

// WorkChanges says that this gateway's own work has changed, to the one who reports it.
func (f *Fleet) WorkChanges() <-chan struct{} { return f.worked }

// NoteWork says that this gateway's own work has changed.
func (f *Fleet) NoteWork() { wake(f.worked) }
