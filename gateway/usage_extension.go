package gateway

import (
	"bytes"
	"math"
	"strconv"
	"time"

	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/api"
)

// usageExtension is what the usage of an answer says beside what the engine counted, for
// clients that see bodies and not headers; those of a stream are sent too early to say it. The
// zero value adds nothing.
type usageExtension struct {
	dialect  *api.Dialect // nil: nothing is added
	start    time.Time
	wait     time.Duration // in the gateway's queue
	expected int           // tokens of the prompt that caches had, as known when the servers were chosen
}

// usageExtension is what the answer's usage is to say.
func (x *exchange) usageExtension(answer *pd.Answer) usageExtension {
	if !x.server.cfg.UsageExtension || !x.dialect.Split || x.dialect.Native {
		return usageExtension{}
	}
	return usageExtension{dialect: x.dialect, start: x.start, wait: answer.Timing.Wait, expected: answer.CachedTokens}
}

// inBody adds it to the usage of a whole answer.
func (u usageExtension) inBody(body []byte) []byte {
	if u.dialect == nil {
		return body
	}
	return u.dialect.AddToUsage(body, extensionName, u.says)
}

// inEvents adds it to the usage that counts a whole answer, in the events of a stream from an
// offset on. Engines send the data of an event in one line.
func (u usageExtension) inEvents(events []byte, from int) []byte {
	if u.dialect == nil || !bytes.Contains(events[from:], []byte(`"usage"`)) {
		return events
	}
	added := make([]byte, 0, len(events)-from+256)
	for line := range bytes.Lines(events[from:]) {
		if data, found := bytes.CutPrefix(line, []byte("data:")); found && u.dialect.LastUsage(data) {
			line = append([]byte("data:"), u.dialect.AddToUsage(data, extensionName, u.says)...)
		}
		added = append(added, line...)
	}
	return append(events[:from], added...)
}

// extensionName is the member of a usage that the extension is.
const extensionName = "tandem"

// says is the extension beside what the engine reported. It names no server.
func (u usageExtension) says(reported api.Usage) []byte {
	field := []byte(`{"expected_cached_tokens":`)
	field = strconv.AppendInt(field, int64(u.expected), 10)
	if reported.Cached.Known {
		field = strconv.AppendInt(append(field, `,"cached_tokens":`...), int64(reported.Cached.Tokens), 10)
	}
	share := 0.0
	if took := time.Since(u.start); took > 0 {
		share = math.Round(min(1, float64(u.wait)/float64(took))*1000) / 1000
	}
	field = strconv.AppendFloat(append(field, `,"wait_ms":`...), ms(u.wait), 'f', 1, 64)
	field = strconv.AppendFloat(append(field, `,"wait_share":`...), share, 'f', -1, 64)
	return append(field, '}')
}
