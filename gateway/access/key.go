package access

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"time"
)

// Key is one API key, without the key itself: who holds it and what it may do.
type Key struct {
	ID     string // the first bytes of its hash: names it to people and replicas, opens nothing
	Tenant string // "" where there are no keys
	// Salt is the tenant's cache_salt: tenants neither reuse each other's KV nor can
	// find out from the time of an answer what others have asked. "" where there are no keys.
	Salt  string
	Class int // of priority: 0 is served first

	MaySet     MaySet
	MaxSamples int           // answers that one request may ask for
	MaxOutput  int           // bound on the answer that one request may set, in tokens; 0: none
	Deadline   time.Duration // for the first content of requests that name none; 0: none
	TTFT, ITL  time.Duration // objectives of requests that name none; 0: those of the model

	models []string
	limits Limits
	digest [sha256.Size]byte
	quota  *quota
}

// MaySet is what requests of a key may say of themselves. Everybody may ask for less:
// a lower class, an earlier deadline.
type MaySet struct {
	Priority, Objectives, Deadline bool
	// Tenant is for what asks in the name of many, such as a gateway before this one: whose a
	// request is, in the order of service alone. Key, limits and cached prompts stay the key's.
	Tenant bool
}

// May reports whether the key may ask for a model.
func (k *Key) May(model string) bool {
	return len(k.models) == 0 || slices.ContainsFunc(k.models, func(m string) bool { return admits(m, model) })
}

// admits reports whether what a key lists, a name that may end in *, admits a model.
func admits(listed, model string) bool {
	prefix, any := strings.CutSuffix(listed, "*")
	return listed == model || any && strings.HasPrefix(model, prefix)
}

// UnknownModels are those of the models that the key lists which admit none of some names, and whether it lists others.
func (k *Key) UnknownModels(names []string) (unknown []string, others bool) {
	for _, m := range k.models {
		if !slices.ContainsFunc(names, func(name string) bool { return admits(m, name) }) {
			unknown = append(unknown, m)
		}
	}
	return unknown, len(unknown) < len(k.models)
}

// salt is the tenant's cache_salt. It is no secret to the tenant's engines, but nobody
// can make it without the secret.
func salt(secret []byte, tenant string) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("cache_salt\x00" + tenant))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// Hash is what the file holds of a key.
func Hash(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// Keys finds a key by what a client sent. It does not change; a reload makes another.
type Keys struct {
	// A map's look-up takes a time that depends on what is looked up. Clients know the
	// hash of what they send; blinded by random bytes it reveals nothing to them.
	blindingKey [sha256.Size]byte
	byHash      map[[sha256.Size]byte]*Key
	byID        map[string]*Key
	tenants     int // that have some, once they are applied
}

func newKeys() *Keys {
	k := &Keys{byHash: make(map[[sha256.Size]byte]*Key), byID: make(map[string]*Key)}
	_, _ = rand.Read(k.blindingKey[:]) // never fails (crypto/rand)
	return k
}

func (k *Keys) blindedHash(digest [sha256.Size]byte) [sha256.Size]byte {
	return sha256.Sum256(append(k.blindingKey[:], digest[:]...))
}

// add reports false for a key that is there already.
func (k *Keys) add(key *Key) bool {
	if k.byID[key.ID] != nil {
		return false
	}
	k.byHash[k.blindedHash(key.digest)] = key
	k.byID[key.ID] = key
	return true
}

// find returns the key that a client sent, nil for one that is not known.
func (k *Keys) find(sent []byte) *Key {
	digest := sha256.Sum256(sent)
	key := k.byHash[k.blindedHash(digest)]
	if key == nil || subtle.ConstantTimeCompare(key.digest[:], digest[:]) != 1 {
		return nil
	}
	return key
}

// All returns the keys by tenant and ID.
func (k *Keys) All() []*Key {
	return slices.SortedFunc(maps.Values(k.byID), func(a, b *Key) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.ID, b.ID))
	})
}

// Len returns how many keys there are, and of how many tenants.
func (k *Keys) Len() (keys, tenants int) {
	names := make(map[string]bool)
	for _, key := range k.byID {
		names[key.Tenant] = true
	}
	return len(k.byID), len(names)
}
