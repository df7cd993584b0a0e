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

// fields are a request's headers as fasthttp has read them, in its memory: for as long as its handler
// runs. Some twenty are asked for in each request, most of which no client sends, and fasthttp brings
// each name into its canonical form before it looks.
type fields []field

type field struct{ name, value string }

var fieldsMemory = sync.Pool{New: func() any { return new(fields) }}

// fieldsOf are to be released before the handler ends.
func fieldsOf(h *fasthttp.RequestHeader) *fields {
	f := fieldsMemory.Get().(*fields) //nolint:forcetypeassert // nothing else is put there
	for name, value := range h.All() {
		*f = append(*f, field{utils.UnsafeString(name), utils.UnsafeString(value)})
	}
	return f
}

func (f *fields) release() {
	clear(*f) // it keeps nothing of the connection's
	*f = (*f)[:0]
	fieldsMemory.Put(f)
}

// Get is the first value of a header, "" if it is not there.
func (f *fields) Get(name string, _ ...string) string {
	for i := range *f {
		if is := &(*f)[i]; len(is.name) == len(name) && strings.EqualFold(is.name, name) {
			return is.value
		}
	}
	return ""
}
