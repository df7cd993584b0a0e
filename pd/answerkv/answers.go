package answerkv

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Key is what KV depends on beside the tokens. Answers of one key alone are compared.
type Key struct {
	Class         uint64 // of the servers that can use each other's KV
	Model         string // base model
	Adapter, Salt string
}

// Answer is the KV of a prompt and its answer that one server keeps. Once it was added it belongs
// to Answers, but for what never changes: all save IDs.
type Answer struct {
	Key
	Server      string // that keeps it
	Incarnation uint64 // of that server
	// IDs are the tokens whose KV it is, of the prompt first. The last one that was said is none
	// of them: it was not computed.
	IDs    []uint32
	Prompt int    // of them
	Block  int    // tokens of a KV block
	Text   uint64 // hash of the text of its prompt; 0: not known
	// Handoff names the KV, as the engine's answer had it.
	Handoff []byte
	Until   time.Time // when it is not used any more

	at   beginning
	gone bool // taken, or forgotten; the mutex of its Answers guards it, and IDs from then on
}

// covers is how many leading tokens of a prompt the answer has in whole blocks. The last token of a
// prompt is computed in any case.
func (a *Answer) covers(ids []uint32) int {
	most := min(len(a.IDs), len(ids)-1)
	n := 0
	for n < most && a.IDs[n] == ids[n] {
		n++
	}
	return n / a.Block * a.Block
}

// chunk is how many tokens of a prompt one key is made of, with those before: prompts that are
// shorter are not remembered. vLLM reads nothing below 64 (kv_recompute_threshold).
const chunk = 64

// maxTokens bounds what is remembered: 4 bytes each.
const maxTokens = 8 << 20

// Answers are those that may still be read. Its methods may be called by many goroutines; the zero
// value remembers nothing yet.
type Answers struct {
	used atomic.Bool // one was added
	once sync.Once
	seed maphash.Seed

	mu          sync.Mutex // guards everything below
	byBeginning map[beginning][]*Answer
	texts       map[uint64]int // how many there are of a text
	oldest      []*Answer      // in the order in which they were added, which is that of their ends
	tokens      int
}

// beginning is the whole chunks of an answer's prompt.
type beginning struct {
	Key
	hash uint64
}

// Add remembers an answer. What was remembered longest makes room.
func (as *Answers) Add(a *Answer, now time.Time) {
	if a.Prompt < chunk || a.Prompt > len(a.IDs) || a.Block <= 0 || len(a.IDs) > maxTokens {
		return
	}
	a.at = beginning{a.Key, as.hashes(a.IDs[:a.Prompt/chunk*chunk], nil)}
	as.mu.Lock()
	defer as.mu.Unlock()
	if as.byBeginning == nil {
		as.byBeginning, as.texts = make(map[beginning][]*Answer), make(map[uint64]int)
	}
	for len(as.oldest) > 0 && (as.oldest[0].gone || now.After(as.oldest[0].Until) || as.tokens+len(a.IDs) > maxTokens) {
		as.removeLocked(as.oldest[0])
		as.oldest[0] = nil
		as.oldest = as.oldest[1:]
	}
	as.byBeginning[a.at] = append(as.byBeginning[a.at], a)
	as.texts[a.Text]++
	as.oldest = append(as.oldest, a)
	as.used.Store(true)
	as.tokens += len(a.IDs)
}

// Used reports whether an answer was ever added; of nil answers none was.
func (as *Answers) Used() bool { return as != nil && as.used.Load() }

// Expects reports whether there is an answer to a prompt of a text: whether to look at what goes on
// behind that text.
func (as *Answers) Expects(text uint64) bool {
	if !as.Used() {
		return false
	}
	as.mu.Lock()
	defer as.mu.Unlock()
	return as.texts[text] > 0
}

// Find returns the answer that has the most leading tokens of a prompt in whole blocks, and how many;
// the newest of several. nil: none has any of its answer's tokens.
func (as *Answers) Find(k Key, ids []uint32, now time.Time) (best *Answer, tokens int) {
	if len(ids) <= chunk {
		return nil, 0
	}
	as.mu.Lock()
	defer as.mu.Unlock()
	if len(as.byBeginning) == 0 {
		return nil, 0
	}
	as.hashes(ids, func(hash uint64) {
		for _, a := range as.byBeginning[beginning{k, hash}] {
			// Of its prompt alone prefill mostly has the KV itself.
			if n := a.covers(ids); n > a.Prompt/a.Block*a.Block && n >= tokens && !now.After(a.Until) {
				best, tokens = a, n
			}
		}
	})
	return best, tokens
}

// Take takes an answer, so that no one else does; false where someone has, or its time is over.
func (as *Answers) Take(a *Answer, now time.Time) bool {
	as.mu.Lock()
	defer as.mu.Unlock()
	if a.gone {
		return false
	}
	as.removeLocked(a)
	return !now.After(a.Until)
}

// IsThere reports whether an answer could still be taken.
func (as *Answers) IsThere(a *Answer, now time.Time) bool {
	as.mu.Lock()
	defer as.mu.Unlock()
	return !a.gone && !now.After(a.Until)
}

// removeLocked forgets an answer, but for its place among the oldest.
func (as *Answers) removeLocked(a *Answer) {
	if a.gone {
		return
	}
	a.gone = true
	as.tokens -= len(a.IDs)
	left := slices.DeleteFunc(as.byBeginning[a.at], func(other *Answer) bool { return other == a })
	if as.byBeginning[a.at] = left; len(left) == 0 {
		delete(as.byBeginning, a.at)
	}
	if as.texts[a.Text]--; as.texts[a.Text] == 0 {
		delete(as.texts, a.Text)
	}
	a.IDs = nil // its place may be kept for long
}

// hashes returns the hash of all whole chunks of ids, and calls each with those of the chunks
// before, itself the last.
func (as *Answers) hashes(ids []uint32, each func(uint64)) (hash uint64) {
	as.once.Do(func() { as.seed = maphash.MakeSeed() })
	var buf [8 + 4*chunk]byte
	for at := 0; at+chunk <= len(ids); at += chunk {
		binary.LittleEndian.PutUint64(buf[:], hash)
		for i, id := range ids[at : at+chunk] {
			binary.LittleEndian.PutUint32(buf[8+4*i:], id)
		}
		hash = maphash.Bytes(as.seed, buf[:])
		if each != nil {
			each(hash)
		}
	}
	return hash
}
