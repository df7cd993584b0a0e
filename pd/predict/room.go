package predict

import "time"

// What is learned of many keys, any of which a client may bring, is bounded.
const (
	maxKeys = 4096      // that are remembered; what more there is goes by what is known of all
	stale   = time.Hour // a key that was not seen for so long may be forgotten
)

// remembered is what is known of a key.
type remembered interface{ lastSeen() time.Time }

// makeRoom reports whether one key more may be remembered. Where there are too many it forgets
// the stale ones, at most once a minute: swept is when it last did.
func makeRoom[K comparable, V remembered](all map[K]V, swept *time.Time, now time.Time) bool {
	if len(all) >= maxKeys && now.Sub(*swept) > time.Minute {
		*swept = now
		for key, v := range all {
			if now.Sub(v.lastSeen()) > stale {
				delete(all, key)
			}
		}
	}
	return len(all) < maxKeys
}
