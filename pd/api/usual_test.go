package api

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
)

// Keys that take no memory are the keys that they are, and a field may be twice under none of them.
func TestUsualKey_IsTheKey(t *testing.T) {
	usual := 0
	for key := range strings.FieldsSeq(`id object created model choices usage messages prompt stream stream_options max_tokens
		max_completion_tokens temperature top_p prompt_tokens completion_tokens total_tokens prompt_tokens_details
		cached_tokens service_tier system_fingerprint prompt_logprobs prompt_token_ids kv_transfer_params
		other ids Usage choices2`) {
		if got := usualKey([]byte(key)); got == key {
			usual++
		} else if got != "" {
			t.Errorf("%q is taken for %q", key, got)
		}
		body, err := ParseBody([]byte(`{"a":1,"` + key + `":2}`))
		if err != nil || string(body.Get(key)) != "2" || body.Keys()[1] != key {
			t.Errorf("%s: %v, %q", key, err, body.Keys())
		}
		if _, err := ParseBody([]byte(`{"` + key + `":1,"a":2,"` + key + `":3}`)); err == nil {
			t.Errorf("%q may be there twice", key)
		}
	}
	if usual != 24 {
		t.Errorf("%d keys are usual", usual)
	}
}

// An object of any size has each key once.
func TestUnique_OfAnySize(t *testing.T) {
	for fields := range 2 * usualFields {
		var text strings.Builder
		for i := range fields {
			text.WriteString(`"k` + strconv.Itoa(i) + `":1,`)
		}
		if _, err := ParseBody([]byte("{" + text.String() + `"last":1}`)); err != nil {
			t.Errorf("%d fields: %v", fields, err)
		}
		if _, err := ParseBody([]byte(`{"last":1,` + text.String() + `"last":1}`)); err == nil {
			t.Errorf("%d fields, and one twice", fields)
		}
	}
}

// A number is what encoding/json reads.
func TestInt_AsJSON(t *testing.T) {
	for _, text := range []string{
		"", "0", "7", "10", "-1", "-0", "00", "01", "1e2", "1.0", "1.5", "+1", "0x1", " 1", "1 ", "null", "true", `"1"`, "1_0",
		"999999999999999999", "1000000000000000000", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "123456789012345678901",
	} {
		var number json.Number
		want, err := int64(0), json.Unmarshal([]byte(text), &number)
		if err == nil && text[0] != '"' {
			want, err = number.Int64()
		}
		valid := err == nil && text != "" && strings.ContainsAny(text[:1], "-0123456789")
		if got, ok := Value(text).Int(); ok != valid || ok && got != want {
			t.Errorf("%q: %d, %v; want %d, %v", text, got, ok, want, valid)
		}
	}
}

// A new field's key is quoted as encoding/json does it.
func TestWith_QuotesNewKeys(t *testing.T) {
	for _, key := range []string{"prompt_logprobs", "", "a1", `a"b`, "a\\b", "<&>", "\xff", "ä", "a\u2028", strings.Repeat("long_", 40)} {
		quoted, _ := json.Marshal(key)
		if got := (Body{}).With(Set(key, []byte("1"))).Bytes(); string(got) != "{"+string(quoted)+":1}" {
			t.Errorf("%q: %s", key, got)
		}
	}
}

// A field is found whatever other keys are as long as its own, and is not once it was deleted.
func TestGet_FindsFieldsOfAnyLength(t *testing.T) {
	for length := 1; length < 130; length++ {
		key, other := strings.Repeat("k", length), strings.Repeat("o", length)
		parsed, err := ParseBody([]byte(`{"a":1,"` + key + `":2}`))
		if err != nil {
			t.Fatal(err)
		}
		added := Body{}.With(Set(key, []byte("2")))
		rewritten := added.Rewrite(func(string, Value) Value { return Value("2") })
		for name, body := range map[string]Body{
			"parsed": parsed, "added": added, "rewritten": rewritten, "without text": added.WithoutText(), "replaced": parsed.With(Set(key, []byte("2"))),
		} {
			without := body.With(Remove(key))
			if string(body.Get(key)) != "2" || body.Get(other) != nil || without.Get(key) != nil {
				t.Errorf("%s, a key of %d: %q, %q", name, length, body.Get(key), body.Get(other))
			}
		}
	}
}
