package policy

import "math"

// fleet is how our own policies see the servers and a request: the adapter between
// View and the pure code.
type fleet struct {
	servers Servers
	links   *Links
	alone   bool // decode servers may compute prompts
}

// decodeWeight is what a second of decoding is worth, of the request itself and of
// those in its batch, in seconds to the first token. Without it all go to the
// nearest decode server, however full.
const decodeWeight = 0.2

func newFleet(s *Scenario, alone bool) *fleet {
	f := &fleet{alone: alone, links: newLinks(s)}
	f.servers = Servers{
		Prefill: make([]PrefillState, s.Prefill), Decode: make([]DecodeState, s.Decode),
		Links: NewLinkTable(s.Prefill, s.Decode),
	}
	return f
}

// newLinks knows two classes: within a rack and between racks.
func newLinks(s *Scenario) *Links {
	var class []int
	for p := range s.Prefill {
		for d := range s.Decode {
			kind := 0
			if s.prefillRack(p) != s.decodeRack(d) {
				kind = 1
			}
			class = append(class, kind)
		}
	}
	h := &s.Hardware
	return NewLinks(s.Prefill, s.Decode, class, []float64{h.HandOff, h.HandOff}, []float64{h.NIC, min(h.NIC, s.uplink())})
}

// look takes over the state of the servers.
func (f *fleet) look(v *View) {
	for p := range f.servers.Prefill {
		f.servers.Prefill[p] = PrefillState{Ahead: v.QueueSeconds(p), Queued: v.PrefillRequests(p)}
	}
	output := float64(v.Output())
	for d := range f.servers.Decode {
		step := v.GroupStepSeconds(d)
		f.servers.Decode[d] = DecodeState{
			Seconds:  step * (1 + decodeWeight*output),
			PerToken: decodeWeight * output * v.GroupSecondsPerToken(d),
			Running:  v.GroupRequests(d),
			Room:     v.DecodeCapacity() - v.DecodeUsed(d),
		}
	}
	f.links.Fill(f.servers.Links, virtual(v.now))
}

// ticket makes one for a request.
func (f *fleet) ticket(v *View, j *job) *Ticket {
	t := &Ticket{ID: int64(j.id), Arrived: virtual(j.arrived)}
	t.Prefill, t.Reference = make([]float64, v.Prefills()), make([]float64, v.Prefills())
	t.Missing = make([]float64, v.Decodes())
	if f.alone {
		t.Alone = make([]float64, v.Decodes())
	}
	f.fill(v, t, j)
	return t
}

// fill writes what a request costs on each server, as it is known now.
func (f *fleet) fill(v *View, t *Ticket, j *job) {
	v.gateway.look(j)
	t.Tokens = v.Prompt()
	for p := range t.Prefill {
		t.Prefill[p], t.Reference[p] = v.PrefillSeconds(p), v.NominalSeconds(p)
	}
	for d := range t.Missing {
		t.Missing[d] = v.MissingBytes(d)
	}
	for d := range t.Alone {
		t.Alone[d] = v.AloneSeconds(d)
		if v.StallSeconds(d) > v.scenario().SLO.ITL {
			t.Alone[d] = math.Inf(1)
		}
	}
}

// Prefilled and Transferred tell the links.
func (f *fleet) Prefilled(v *View, j *job) {
	f.links.Begin(int64(j.id), j.pair.Prefill, j.pair.Decode, j.estimate.bytes, virtual(v.now))
}
func (f *fleet) Transferred(v *View, j *job, seconds float64) {
	f.links.End(int64(j.id), j.pair.Prefill, j.pair.Decode, j.estimate.bytes, seconds, virtual(v.now))
}
