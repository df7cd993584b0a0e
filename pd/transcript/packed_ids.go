package transcript

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"runtime"
	"sync"
	"weak"

	"github.com/tandem-gateway/tandem/pd/api"
)

// packedIDs are token ids as half a byte for each digit and comma of their list, for as long as a stream is open.
// Streams whose prompts begin alike, as those of a conversation and those about a document do, share it, and
// digits of which another open stream has the ids are not read again.
type packedIDs struct {
	shared []*idRun // from the beginning
	rest   []byte
	count  int // of the ids
}

// sharedText is how much text of a list, in bytes, is shared as one run: some 1,000 ids. What a stream of a
// short prompt has for itself is not more.
const sharedText = 6 << 10

// idRun is a part of a list of ids.
type idRun struct {
	packed []byte
	count  int // of the ids
}

// runName stands for the text of a run. Clients choose the texts, and one that had the name of another's would
// let a stream go on behind that one's prompt. So it is a hash under a key of this process that nobody else
// has: GHASH, which is what AES-GCM authenticates additional data by. Whatever two texts of n bytes are chosen,
// that key gives them the same name with a probability of less than (n/16 + 2) / 2^128. No name leaves the
// process, so that nobody learns of the key, and one nonce is enough for all.
type runName [16]byte

// openRuns are the runs of ids that streams have.
var openRuns = newRunTable()

type runTable struct {
	names cipher.AEAD // nil: there are none (GODEBUG=fips140=only), and nothing is shared
	nonce []byte      // of all names

	mu   sync.Mutex // guards runs
	runs map[runName]weak.Pointer[idRun]
}

func newRunTable() *runTable {
	t := &runTable{runs: make(map[runName]weak.Pointer[idRun]), nonce: make([]byte, 12)}
	key := make([]byte, 16)
	_, _ = rand.Read(key)            // never fails
	block, err := aes.NewCipher(key) // nor does this for such a key
	if err != nil {
		return t
	}
	if names, err := cipher.NewGCM(block); err == nil {
		t.names = names
	}
	return t
}

// nameOf names a text, by way of some memory.
func (t *runTable) nameOf(text []byte, scratch *[]byte) runName {
	*scratch = t.names.Seal((*scratch)[:0], t.nonce, nil, text)
	return runName(*scratch)
}

func (t *runTable) find(name runName) *idRun {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.runs[name].Value()
}

// add shares a run, and returns the one that another stream has shared meanwhile, if one has.
func (t *runTable) add(name runName, r *idRun) *idRun {
	t.mu.Lock()
	defer t.mu.Unlock()
	if there := t.runs[name].Value(); there != nil {
		return there
	}
	t.runs[name] = weak.Make(r)
	runtime.AddCleanup(r, t.remove, name)
	return r
}

// remove forgets a run that no stream has any more, unless another one has taken its place.
func (t *runTable) remove(name runName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.runs[name].Value() == nil {
		delete(t.runs, name)
	}
}

// packing are buffers for what is not known to be a list of ids yet.
var packing = sync.Pool{New: func() any { return new([]byte) }}

// packIDs packs ids of the form "1, 2,3"; false where they are not of that form, which is that of a list in JSON. Of
// digits that another stream has that was found out before.
func packIDs(text []byte) (p packedIDs, ok bool) {
	scratch := packing.Get().(*[]byte)
	defer packing.Put(scratch)
	for openRuns.names != nil && len(text) > sharedText {
		comma := bytes.IndexByte(text[sharedText:], ',')
		if comma < 0 {
			break
		}
		part := text[:sharedText+comma]
		name := openRuns.nameOf(part, scratch)
		r := openRuns.find(name)
		if r == nil {
			packed, ok := pack(part)
			if !ok {
				return packedIDs{}, false
			}
			r = openRuns.add(name, &idRun{packed, countIDs(part)})
		}
		if p.shared == nil {
			p.shared = make([]*idRun, 0, len(text)/sharedText)
		}
		p.shared, p.count, text = append(p.shared, r), p.count+r.count, text[len(part)+1:]
	}
	if p.rest, ok = pack(text); !ok {
		return packedIDs{}, false
	}
	p.count += countIDs(text)
	return p, true
}

// Prompt reads the ids of a prompt in an answer to prefill, for Transcript.RecordPrompt: an api.PromptCounter. Those of a
// prompt that is known are read by their names, and all are once and not twice. It holds on to the answer. nil reads none.
type Prompt struct {
	text   []byte // without brackets
	packed packedIDs
}

// ReadPrompt packs the ids.
func (p *Prompt) ReadPrompt(ids []byte) (ok bool) {
	if p == nil {
		return false
	}
	packed, ok := packIDs(ids)
	if ok {
		p.text, p.packed = ids, packed
	}
	return ok
}

// Count is how many ids were read.
func (p *Prompt) Count() int { return p.packed.count }

// isOf reports whether these are the ids that were read, and not others that are equal.
func (p *Prompt) isOf(list api.Value) bool {
	return p != nil && p.packed.count > 0 && len(list) == len(p.text)+len("[]") && &list[1] == &p.text[0]
}

// countIDs is how many ids are in a list that has some.
func countIDs(text []byte) int { return 1 + bytes.Count(text, []byte{','}) }

// Half a byte is a digit, or one of these.
const (
	packedComma   = ',' & 0xf
	packedNothing = 0xf // behind the last one, where they are an odd number
)

// pack packs ids of the form "1, 2,3" that are some; false where they are not of that form.
func pack(text []byte) (packed []byte, ok bool) {
	if text, ok = api.CompactIDs(text); !ok {
		return nil, false
	}
	packed = make([]byte, 0, (len(text)+1)/2)
	for ; len(text) >= 8; text = text[8:] {
		w := binary.LittleEndian.Uint64(text) & 0x0f0f0f0f0f0f0f0f // of each byte it is the lower half that differs
		w = (w | w>>4) & 0x00ff00ff00ff00ff
		w = (w | w>>8) & 0x0000ffff0000ffff
		packed = binary.LittleEndian.AppendUint32(packed, uint32(w|w>>16))
	}
	for ; len(text) >= 2; text = text[2:] {
		packed = append(packed, text[0]&0xf|text[1]<<4)
	}
	if len(text) == 1 {
		packed = append(packed, text[0]&0xf|packedNothing<<4)
	}
	return packed, true
}

// appendTo appends the ids as "1,2,3".
func (p packedIDs) appendTo(out []byte) []byte {
	for _, r := range p.shared {
		out = append(appendUnpacked(out, r.packed), ',')
	}
	return appendUnpacked(out, p.rest)
}

// appendUnpacked appends ids as pack was given them.
func appendUnpacked(out, packed []byte) []byte {
	for _, two := range packed {
		for _, half := range [2]byte{two & 0xf, two >> 4} {
			switch half {
			case packedComma:
				out = append(out, ',')
			case packedNothing:
			default:
				out = append(out, '0'+half)
			}
		}
	}
	return out
}
