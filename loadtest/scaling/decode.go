package scaling

// sequence is a request on a decode server.
type sequence struct {
	*request
	first    float64       // time of the first token
	produced float64       // tokens
	server   *decodeServer // nil while it has none
}

// kv is what the sequence will hold at its end, which is reserved at its start.
func (s *sequence) kv() float64 { return float64(s.prompt + s.output) }

// decodeServer decodes a batch, and where it is convertible computes one prompt at
// a time beside it.
type decodeServer struct {
	pod
	batch    []*sequence
	held     int     // requests of the batch, on their way to it, and the prompt below
	reserved float64 // their tokens of KV, at their ends
	contexts float64 // their tokens of KV, on the mean of their lives
	prompt   *request
	left     float64 // seconds of work on the prompt with the server to itself
}

func (d *decodeServer) base() *pod { return &d.pod }

func (d *decodeServer) busy() float64 { return d.reserved }

func (d *decodeServer) takes(now float64) bool { return !d.draining && d.readyAt <= now }

// hold reserves what a request will need.
func (d *decodeServer) hold(r *request) {
	d.held++
	d.reserved += float64(r.prompt + r.output)
	d.contexts += float64(r.prompt) + float64(r.output)/2
}

func (d *decodeServer) release(r *request) {
	d.held--
	d.reserved -= float64(r.prompt + r.output)
	d.contexts -= float64(r.prompt) + float64(r.output)/2
}

// step is the time of a step with one more request, on the mean of its life.
func (d *decodeServer) step(h *Hardware, r *request) float64 {
	return h.step(float64(d.held+1), d.contexts+float64(r.prompt)+float64(r.output)/2)
}

// share is the part of a decode server's time that a prompt gets beside its batch.
const share = 0.5

// pass lets the server work from now for some seconds. It hands sequences that
// ended to ended.
func (d *decodeServer) pass(h *Hardware, now, seconds float64, ended func(s *sequence, at float64)) {
	left := seconds
	if d.prompt != nil {
		left *= 1 - share
		if d.left -= seconds * share; d.left <= 0 {
			d.batch = append(d.batch, &sequence{request: d.prompt, first: now + seconds, produced: 1})
			d.prompt = nil
		}
	}
	context := 0.0
	for _, s := range d.batch {
		context += float64(s.prompt) + s.produced
	}
	tokens := left / h.step(float64(len(d.batch)), context)
	stay := d.batch[:0]
	for _, s := range d.batch {
		if s.first >= now+seconds { // its first token is of this very moment
			stay = append(stay, s)
			continue
		}
		missing := float64(s.output) - s.produced
		if missing > tokens {
			s.produced += tokens
			stay = append(stay, s)
			continue
		}
		d.release(s.request)
		ended(s, max(s.first, now+seconds*max(missing, 0)/tokens))
	}
	clear(d.batch[len(stay):])
	d.batch = stay
}
