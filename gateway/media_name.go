package gateway

import (
	"bytes"
	"net/http"

	"github.com/tandem-gateway/tandem/pd/api"
)

// Clients may name media. vLLM keeps what it makes of a medium under the uuid that it comes with, for
// whoever names that next and whatever medium comes with it (0.32, multimodal/processing/inputs.py,
// get_mm_hashes), and leaves it to clients to take names that nobody guesses (docs/usage/security.md).
// SGLang does so by an image's content_hash, where it is started with --trust-mm-content-hashes
// (srt/entrypoints/openai/protocol.py, main of 2026). No salt keeps tenants apart there.
const (
	mediumName  = "uuid"
	contentHash = "content_hash"
)

// mediaFields are what makes a part of a message a medium (vLLM 0.32, renderers/chat_utils.py,
// _parse_chat_message_content_mm_part).
var mediaFields = map[string]bool{
	"image_url": true, "input_image": true, "image_pil": true, "image_embeds": true,
	"audio_url": true, "input_audio": true, "audio_embeds": true, "video_url": true, "video_embeds": true,
}

// mediaPrompts are the fields in which prompts have media: those of the APIs that Tandem serves (vLLM
// 0.32, entrypoints/openai and entrypoints/pooling).
var mediaPrompts = map[string]bool{
	"messages": true, "input": true, "query": true, "queries": true, "documents": true, "items": true,
	"data_1": true, "data_2": true, "text_1": true, "text_2": true,
}

// deepestPart is how deep in a prompt a part may be: in lists of conversations, of messages, of their
// parts, and of those of a tool's result. Engines look no deeper.
const deepestPart = 8

var errMediumNotSent = &badRequest{status: http.StatusBadRequest, code: "tenants_not_separated",
	message: "A medium that is only named, by its uuid, might be another tenant's. Send the medium itself."}

// withoutMediaNames returns a body without the names of media in its prompt: engines name a medium
// without one by what it is. It refuses media that are not sent beside their names.
func withoutMediaNames(raw []byte) ([]byte, error) {
	if !mayNameMedia(raw) {
		return raw, nil
	}
	body, err := api.ParseBody(bytes.TrimPrefix(raw, byteOrderMark))
	if err != nil {
		return nil, invalid("", "%s", err)
	}
	var names nameRemover
	clean := body.Rewrite(func(key string, value api.Value) api.Value {
		if !mediaPrompts[key] {
			return value
		}
		return names.remove(value, 0)
	})
	switch {
	case names.notSent:
		return nil, errMediumNotSent
	case !clean.Edited():
		return raw, nil
	}
	return clean.Bytes(), nil
}

// mayNameMedia reports whether a body has such a name anywhere, or an escape that may hide one.
func mayNameMedia(raw []byte) bool {
	return bytes.Contains(raw, []byte(mediumName)) || bytes.Contains(raw, []byte(contentHash)) || bytes.Contains(raw, []byte(`\u00`))
}

// nameRemover removes the names of media from one prompt.
type nameRemover struct {
	notSent bool // a medium is named and not sent
}

// remove returns a value without them: the same bytes where there are none.
func (r *nameRemover) remove(value api.Value, depth int) api.Value {
	switch {
	case depth > deepestPart:
	case value.IsArray():
		return r.list(value, depth)
	case value.IsObject():
		return r.object(value, depth)
	}
	return value
}

func (r *nameRemover) list(value api.Value, depth int) api.Value {
	out, changed := append(make([]byte, 0, len(value)), '['), false
	for e := range value.Elements() {
		clean := r.remove(e, depth+1)
		changed = changed || len(clean) != len(e)
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, clean...)
	}
	if !changed {
		return value
	}
	return append(out, ']')
}

// object returns a message, or a part of one.
func (r *nameRemover) object(value api.Value, depth int) api.Value {
	medium, named, sent := false, false, false
	for key, v := range value.Members() {
		medium, sent = medium || mediaFields[key], sent || mediaFields[key] && v.SaysSomething()
		named = named || key == mediumName && !v.Null()
	}
	r.notSent = r.notSent || medium && named && !sent
	return withMembers(value, func(key string, v api.Value) api.Value {
		switch {
		case medium && key == mediumName && !v.Null():
			return nil
		case medium && mediaFields[key] && v.IsObject():
			return withMembers(v, func(key string, v api.Value) api.Value {
				if key == contentHash {
					return nil
				}
				return v
			})
		case key == "content" || key == "output":
			return r.remove(v, depth+1)
		}
		return v
	})
}

// withMembers returns an object with the values that change returns for its members; nil removes one. A
// key that appears twice stays twice.
func withMembers(object api.Value, change func(key string, v api.Value) api.Value) api.Value {
	out, changed := append(make([]byte, 0, len(object)), '{'), false
	for key, v := range object.Members() {
		clean := change(key, v)
		changed = changed || len(clean) != len(v)
		if clean == nil {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, quoted(key)...), ':'), clean...)
	}
	if !changed {
		return object
	}
	return append(out, '}')
}
