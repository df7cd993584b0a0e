package pd

import "github.com/tandem-gateway/tandem/pd/enginehttp"

// eventRoom is what a stream's events are counted as: the memory that they are read into, and those that are held back
// until the first content, from then on until their client has them.
type eventRoom struct {
	held       enginehttp.HeldAnswer
	read, back int // bytes
}

// Grow is api.Room's.
func (r *eventRoom) Grow(bytes int) bool {
	if !r.held.Grow(bytes + r.back) {
		return false
	}
	r.read = bytes
	return true
}

// Release is api.Room's.
func (r *eventRoom) Release() {
	r.read = 0
	r.held.Shrink(r.back)
}

// holdBack counts what is held back as so many bytes, unless there is no room for them.
func (r *eventRoom) holdBack(bytes int) bool {
	if !r.held.Grow(r.read + bytes) {
		return false
	}
	r.back = bytes
	return true
}

// give says that the client has what was held back.
func (r *eventRoom) give() {
	r.back = 0
	r.held.Shrink(r.read)
}
