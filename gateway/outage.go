package gateway

import (
	"errors"

	"github.com/tandem-gateway/tandem/pd"
)

// isOutage reports whether a request found no server, and not one that failed it or that lacks a partner. While servers
// are down that is each request that comes.
func isOutage(err error) bool {
	var none *pd.NoServerError
	return errors.As(err, &none) && !none.NoPair
}
