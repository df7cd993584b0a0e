package gateway

import (
	"strings"
	"sync"

	"github.com/gofiber/fiber/v2/utils"
	"github.com/valyala/fasthttp"
)

// header reads the headers of a request, without regard to case. What it returns may alias a
// buffer of the server.
type header interface {
	Get(name string, or ...string) string
}

// headerSetter sets headers of an answer.
type headerSetter interface {
	Set(name, value string)
}

// answerHeader sets headers whose names are in their canonical form, as those of the gateway are: fasthttp brings each
// name into it otherwise.
type answerHeader struct{ all *fasthttp.ResponseHeader }

// Set is headerSetter's.
func (h answerHeader) Set(name, value string) { h.all.SetCanonical([]byte(name), []byte(value)) } // neither is copied

// fields are a request's headers as fasthttp has read them, in its memory: for as long as its handler
// runs. Some twenty are asked for in each request, most of which no client sends, and fasthttp brings
// each name into its canonical form before it looks.
type fields struct {
	all     []field
	lengths uint64 // of their names, a bit each (of 64), by which most that are not there are seen not to be
}

type field struct{ name, value string }

var fieldsMemory = sync.Pool{New: func() any { return new(fields) }}

// fieldsOf are to be released before the handler ends.
func fieldsOf(h *fasthttp.RequestHeader) *fields {
	f := fieldsMemory.Get().(*fields) //nolint:forcetypeassert // nothing else is put there
	for name, value := range h.All() {
		f.lengths |= 1 << (len(name) % 64)
		f.all = append(f.all, field{utils.UnsafeString(name), utils.UnsafeString(value)})
	}
	return f
}

func (f *fields) release() {
	clear(f.all) // it keeps nothing of the connection's
	f.all, f.lengths = f.all[:0], 0
	fieldsMemory.Put(f)
}

// Get is the first value of a header, "" if it is not there.
func (f *fields) Get(name string, _ ...string) string {
	if f.lengths>>(len(name)%64)&1 == 0 {
		return ""
	}
	for i := range f.all {
		if is := &f.all[i]; len(is.name) == len(name) && strings.EqualFold(is.name, name) {
			return is.value
		}
	}
	return ""
}
