package gateway

import (
	"strings"
	"testing"
)

// The names of media are removed wherever engines would read them, and nothing else is changed.
func TestMediaNames_AreRemovedFromPromptsAlone(t *testing.T) {
	for body, want := range map[string]string{
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"},"uuid":"a"}]}]}`:          `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}]}`,
		`{"messages":[{"content":[{"u\u0075id":"a","image_url":"u"}]}],"x":1}`:                                        `{"messages":[{"content":[{"image_url":"u"}]}],"x":1}`,
		`{"messages":[{"content":[{"uuid":"a","input_audio":{"data":"d"},"uuid":"b"}]}]}`:                             `{"messages":[{"content":[{"input_audio":{"data":"d"}}]}]}`,
		`{"messages":[{"content":[{"image_url":{"url":"u","content_hash":"sha256:1"}}]}]}`:                            `{"messages":[{"content":[{"image_url":{"url":"u"}}]}]}`,
		`{"messages":[{"content":[{"type":"tool_result","content":[{"image_url":"u","uuid":1}]}]}]}`:                  `{"messages":[{"content":[{"type":"tool_result","content":[{"image_url":"u"}]}]}]}`,
		`{"messages":[[{"content":[{"image_url":"u","uuid":1}]}]]}`:                                                   `{"messages":[[{"content":[{"image_url":"u"}]}]]}`,
		`{"input":[{"type":"function_call_output","output":[{"image_url":"u","uuid":"a"}]}]}`:                         `{"input":[{"type":"function_call_output","output":[{"image_url":"u"}]}]}`,
		`{"query":"q","documents":[{"content":[{"video_url":{"url":"u"},"uuid":"a"}]},{"image_url":"u","uuid":"a"}]}`: `{"query":"q","documents":[{"content":[{"video_url":{"url":"u"}}]},{"image_url":"u"}]}`,
		"\ufeff" + `{"messages":[{"content":[{"image_url":"u","uuid":"a"}]}]}`:                                        `{"messages":[{"content":[{"image_url":"u"}]}]}`,
	} {
		if got, err := withoutMediaNames([]byte(body)); err != nil || string(got) != want {
			t.Errorf("%s became %s, %v", body, got, err)
		}
	}
	for _, body := range []string{
		`{"messages":[{"role":"user","content":"uuid"}]}`,
		`{"messages":[{"role":"user","uuid":"a","content":[{"type":"text","text":"t","uuid":"a"}]}]}`,
		`{"messages":[{"content":[{"image_url":"u","uuid":null}]}]}`,
		`{"messages":[],"tools":[{"function":{"parameters":{"properties":{"uuid":{},"image_url":{}}}}}]}`,
		`{"messages":[{"tool_calls":[{"function":{"arguments":{"uuid":"a","image_url":"u"}}}]}]}`,
		`{"prompt":"\u00e9"}`, `{"uuid":"a","image_url":"u"}`,
	} {
		if got, err := withoutMediaNames([]byte(body)); err != nil || string(got) != body {
			t.Errorf("%s became %s, %v", body, got, err)
		}
	}
}

func TestMediaNames_WhatIsNotSentIsRefused(t *testing.T) {
	for _, medium := range []string{`"image_url":null`, `"image_url":""`, `"image_url":null,"video_url":null`} {
		if got, err := withoutMediaNames([]byte(`{"messages":[{"content":[{` + medium + `,"uuid":"a"}]}]}`)); err != errMediumNotSent {
			t.Errorf("%s became %s, %v", medium, got, err)
		}
	}
	if _, err := withoutMediaNames([]byte(`{"uuid":1,"uuid":2}`)); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a field twice: %v", err)
	}
}
