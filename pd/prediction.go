package pd

import "sync"

// prediction is that a prompt will be held by the servers that it is sent to. It is entered once, where others look up
// what servers hold: by the goroutine of its request, so that who decides, and others wait for, has not to name
// hundreds of blocks; or by who decides, where a request is priced before. A nil one says nothing.
type prediction struct {
	mu       sync.Mutex                         // guards all below
	enters   func() (withdraw, computed func()) // nil: it was entered, or it was taken back before
	withdraw func()                             // nil: nothing was entered, or it has come true
	computed func()                             // nil with withdraw
}

func (p *prediction) enter() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.enters != nil {
		p.withdraw, p.computed = p.enters()
		p.enters = nil
	}
}

// takeBack says that the servers will not hold the prompt.
func (p *prediction) takeBack() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.enters = nil
	if p.withdraw != nil {
		p.withdraw()
	}
}

// comeTrue says that the server which computes the prompt has done so: what its cache holds of it is from now on what
// the engine reports.
func (p *prediction) comeTrue() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.computed != nil {
		p.computed()
	}
	p.withdraw, p.computed = nil, nil // they keep the prompt's text, and a stream may go on for long
}
