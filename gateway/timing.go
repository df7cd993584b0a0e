package gateway

import (
	"strconv"
	"time"

	"github.com/tandem-gateway/tandem/pd"
)

// timingHeader is W3C's: names and milliseconds, which browsers and tools show.
const timingHeader = "Server-Timing"

// timingText is the header's value: what is known when the answer's head is sent. Of a stream
// that is all up to its first content. It tells no servers, nor how many there are.
func timingText(t pd.Timing, total time.Duration) string {
	var text []byte
	add := func(name string, d time.Duration) {
		if len(text) > 0 {
			text = append(text, ", "...)
		}
		text = append(append(text, name...), ";dur="...)
		text = strconv.AppendFloat(text, ms(d), 'f', 1, 64)
	}
	add("wait", t.Wait)
	add("choose", t.Choose)
	for _, part := range []struct {
		name string
		took time.Duration
	}{{"retry", t.Retry}, {"prefill", t.Prefill}, {"transfer", t.Transfer}, {"decode", t.Decode}} {
		if part.took > 0 {
			add(part.name, part.took)
		}
	}
	add("total", total)
	return string(text)
}
