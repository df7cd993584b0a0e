package engine

import "context"

// Connectors of vLLM whose decode does not name blocks but the transfer: by an id that
// the gateway minted for both legs, or by the request id of both. Prefill holds the
// blocks under that name from its last step on; a decode that comes earlier, or with a
// name that will not be held, waits, and gets no error.

// serveNamed waits for the hold that a decode names and lets it flow over this engine's
// link.
func serveNamed(ctx context.Context, r *rank, in kvPull) kvContent {
	held, rejection := r.awaitHold(ctx, in)
	if held == nil {
		if rejection != "" {
			r.reject(rejection)
		}
		<-ctx.Done()
		return kvContent{}
	}
	var content kvContent
	for _, b := range held.blocks { // being read, so they stay
		content.Digests = append(content.Digests, b.digest)
	}
	err := r.outgoing.transfer(ctx, float64(max(0, len(content.Digests)-in.Skip))*r.blockBytes())
	r.endRead(in.Room, err == nil)
	return content
}

// awaitHold returns the hold, marked as being read; nil when it will never be there, or
// the decode has gone.
func (r *rank) awaitHold(ctx context.Context, in kvPull) (held *heldKV, rejection string) {
	if in.EngineID != "" && in.EngineID != r.id {
		return nil, rejectedEngine
	}
	for {
		r.mu.Lock()
		held, ended, opened := r.held.open[in.Room], r.held.ended[in.Room], r.held.opened
		switch {
		case ended != "":
			rejection = ended
		case held != nil && held.reading:
			rejection = rejectedBusy
		case held != nil && held.reader != "" && held.reader != in.Reader:
			rejection = rejectedReader
		case held != nil:
			held.reading = true
			r.mu.Unlock()
			return held, ""
		}
		r.mu.Unlock()
		if rejection != "" {
			return nil, rejection
		}
		select {
		case <-opened:
		case <-ctx.Done():
			return nil, ""
		}
	}
}
