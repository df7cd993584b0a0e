package engine

import (
	"encoding/json"
	"slices"
)

// Decode legs may name the prompt's tokens, as prefill told them, in
// kv_transfer_params.prompt_token_ids: template and tokenizer are then left out (vLLM
// renderers/online_renderer.py, _reused_prompt_token_ids, since 0.32).

// forwardedIDs returns the tokens that a chat's transfer parameters name, nil if the
// engine has to render the messages: none are named, it is older, or there are media.
func (e *Engine) forwardedIDs(in *chatRequest) ([]int32, error) {
	if !e.isVLLM(32) || !present(in.KVTransferParams) {
		return nil, nil
	}
	var params struct {
		IDs json.RawMessage `json:"prompt_token_ids"`
	}
	if err := json.Unmarshal(in.KVTransferParams, &params); err != nil {
		return nil, badRequest("kv_transfer_params", "kv_transfer_params: %v", err)
	}
	if !present(params.IDs) {
		return nil, nil
	}
	if slices.ContainsFunc(in.Messages, hasMedia) {
		return nil, nil
	}
	var ids []int32
	if err := json.Unmarshal(params.IDs, &ids); err != nil || len(ids) == 0 || slices.Min(ids) < 0 {
		return nil, badRequest("kv_transfer_params.prompt_token_ids",
			"`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative integers.")
	}
	return ids, e.checkTokens(ids)
}

// mediaKeys mark a part of a message as none of text, whatever type it names (renderers/chat_utils.py,
// _MEDIA_CONTENT_PART_KEYS).
var mediaKeys = []string{
	"input_image", "image_url", "image_embeds", "audio_embeds", "video_embeds", "prompt_embeds", "image_pil", "audio_url", "input_audio", "video_url",
}

// hasMedia reports whether a message has a part that is no text.
func hasMedia(m message) bool {
	var parts []map[string]json.RawMessage
	if json.Unmarshal(m.Content, &parts) != nil {
		return false
	}
	return slices.ContainsFunc(parts, func(p map[string]json.RawMessage) bool {
		kind := string(p["type"])
		return slices.ContainsFunc(mediaKeys, func(key string) bool { return p[key] != nil }) ||
			!slices.Contains([]string{"", `"text"`, `"input_text"`, `"output_text"`}, kind)
	})
}

// truncate keeps the end of a prompt, as truncate_prompt_tokens asks. Below zero it is as
// long as the context allows, which holds one token back for an answer whose length the
// request bounds (vLLM renderers/params.py, max_truncation_tokens): one leg with max_tokens
// and one without then disagree on the prompt.
func (e *Engine) truncate(prompt []int32, f *requestFields) []int32 {
	if f.TruncatePrompt == nil {
		return prompt
	}
	most := *f.TruncatePrompt
	if most < 0 {
		most = e.cfg.MaxModelLen
		if f.MaxTokens != nil {
			most--
		}
	}
	return prompt[max(0, len(prompt)-most):]
}
