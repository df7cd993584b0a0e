package pd

import (
	"bytes"

	"github.com/tandem-gateway/tandem/pd/api"
)

// bodyOf is a request whose body has so many bytes, at least two.
func bodyOf(n int) *Request {
	body, err := api.ParseBody(append([]byte("{}"), bytes.Repeat([]byte(" "), max(0, n-len("{}")))...))
	if err != nil {
		panic(err)
	}
	return &Request{Body: body}
}
