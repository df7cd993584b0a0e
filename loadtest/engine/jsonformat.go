package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// jsonFormat writes JSON that keeps to a schema, in place of a model under constrained
// decoding. What it writes follows from the prompt alone: it says the words of a
// script, and does not look at what was said before. Of JSON Schema it knows the
// types, properties, items, enum, const, bounds, formats, anyOf, oneOf, allOf and
// $ref; it does not know pattern.
type jsonFormat struct{ root *schema }

// anyObject is what response_format json_object asks for.
var anyObject = &jsonFormat{&schema{Type: schemaTypes{"object"}, Properties: []property{
	{"answer", &schema{Type: schemaTypes{"string"}}},
	{"count", &schema{Type: schemaTypes{"integer"}}},
}}}

// newJSONFormat reads a schema; vLLM also takes one as a string of JSON.
func newJSONFormat(raw json.RawMessage) (*jsonFormat, error) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		raw = json.RawMessage(text)
	}
	var root schema
	if err := json.Unmarshal(raw, &root); err != nil {
		return nil, badRequest("response_format", "Invalid JSON schema: %v", err)
	}
	return &jsonFormat{&root}, nil
}

// schema is the part of JSON Schema that the writer follows.
type schema struct {
	Type       schemaTypes        `json:"type"`
	Properties properties         `json:"properties"`
	Required   []string           `json:"required"`
	Items      *schema            `json:"items"`
	MinItems   int                `json:"minItems"`
	MaxItems   *int               `json:"maxItems"`
	Enum       []json.RawMessage  `json:"enum"`
	Const      json.RawMessage    `json:"const"`
	AnyOf      []*schema          `json:"anyOf"`
	OneOf      []*schema          `json:"oneOf"`
	AllOf      []*schema          `json:"allOf"`
	Ref        string             `json:"$ref"`
	Defs       map[string]*schema `json:"$defs"`
	OldDefs    map[string]*schema `json:"definitions"`
	MinLength  int                `json:"minLength"`
	MaxLength  *int               `json:"maxLength"`
	Minimum    *float64           `json:"minimum"`
	Maximum    *float64           `json:"maximum"`
	Above      *float64           `json:"exclusiveMinimum"`
	Below      *float64           `json:"exclusiveMaximum"`
	Format     string             `json:"format"`
}

// UnmarshalJSON takes true for a schema that allows anything.
func (s *schema) UnmarshalJSON(raw []byte) error {
	if string(raw) == "true" || string(raw) == "false" {
		return nil
	}
	type plain schema
	return json.Unmarshal(raw, (*plain)(s))
}

// schemaTypes is one type or a list of alternatives.
type schemaTypes []string

func (t *schemaTypes) UnmarshalJSON(raw []byte) error {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		*t = schemaTypes{one}
		return nil
	}
	return json.Unmarshal(raw, (*[]string)(t))
}

// properties keep the order in which the schema names them.
type properties []property

type property struct {
	name   string
	schema *schema
}

func (p *properties) UnmarshalJSON(raw []byte) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return fmt.Errorf("properties is no object")
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		s := &schema{}
		if err := d.Decode(s); err != nil {
			return err
		}
		*p = append(*p, property{fmt.Sprint(name), s})
	}
	return nil
}

// jsonWriter writes one value.
type jsonWriter struct {
	out   strings.Builder
	root  *schema
	words []string
	past  past
	draws int
}

// write returns the JSON text that follows a prompt.
func (f *jsonFormat) write(p past, words []string) string {
	w := &jsonWriter{root: f.root, words: words, past: p}
	w.value(f.root, 0)
	return w.out.String()
}

// Depths at which a recursive schema is cut short: optional parts go first.
const (
	optionalDepth = 4
	deepest       = 32
)

// draw is the next number in 0..n-1.
func (w *jsonWriter) draw(n int) int {
	w.draws++
	return int(w.past.draw(w.draws) % uint64(n))
}

func (w *jsonWriter) value(s *schema, depth int) {
	s = w.resolve(s, depth)
	switch {
	case depth > deepest:
		w.out.WriteString("null")
	case len(s.Const) > 0:
		w.raw(s.Const)
	case len(s.Enum) > 0:
		w.raw(s.Enum[w.draw(len(s.Enum))])
	default:
		w.typed(s, depth)
	}
}

// resolve follows references and picks among alternatives.
func (w *jsonWriter) resolve(s *schema, depth int) *schema {
	for range deepest {
		switch {
		case s.Ref != "":
			name := s.Ref[strings.LastIndex(s.Ref, "/")+1:]
			next := w.root.Defs[name]
			if next == nil {
				next = w.root.OldDefs[name]
			}
			if s.Ref == "#" {
				next = w.root
			}
			if next == nil {
				return &schema{}
			}
			s = next
		case len(s.AllOf) > 0:
			s = merged(s)
		case len(s.AnyOf) > 0:
			s = s.AnyOf[w.alternative(len(s.AnyOf), depth)]
		case len(s.OneOf) > 0:
			s = s.OneOf[w.alternative(len(s.OneOf), depth)]
		default:
			return s
		}
	}
	return &schema{}
}

// alternative picks one; deep down the last, which most often is the simple one.
func (w *jsonWriter) alternative(n, depth int) int {
	if depth >= optionalDepth {
		return n - 1
	}
	return w.draw(n)
}

// merged is a schema with the properties of its allOf parts.
func merged(s *schema) *schema {
	all := *s
	all.AllOf = nil
	for _, part := range s.AllOf {
		all.Properties = append(slices.Clone(all.Properties), part.Properties...)
		all.Required = append(slices.Clone(all.Required), part.Required...)
		if len(all.Type) == 0 {
			all.Type = part.Type
		}
		if all.Ref == "" {
			all.Ref = part.Ref
		}
	}
	return &all
}

func (w *jsonWriter) typed(s *schema, depth int) {
	kind := "string"
	switch {
	case len(s.Type) > 0:
		kind = s.Type[0]
	case len(s.Properties) > 0:
		kind = "object"
	case s.Items != nil:
		kind = "array"
	}
	switch kind {
	case "object":
		w.object(s, depth)
	case "array":
		w.array(s, depth)
	case "integer", "number":
		w.number(s)
	case "boolean":
		w.out.WriteString(strconv.FormatBool(w.draw(2) == 0))
	case "null":
		w.out.WriteString("null")
	default:
		w.string(s)
	}
}

func (w *jsonWriter) object(s *schema, depth int) {
	w.out.WriteByte('{')
	first := true
	for _, p := range s.Properties {
		if depth >= optionalDepth && !slices.Contains(s.Required, p.name) {
			continue
		}
		if !first {
			w.out.WriteString(", ")
		}
		first = false
		w.quoted(p.name)
		w.out.WriteString(": ")
		w.value(p.schema, depth+1)
	}
	w.out.WriteByte('}')
}

func (w *jsonWriter) array(s *schema, depth int) {
	n := s.MinItems
	if depth < optionalDepth {
		n += w.draw(3)
	}
	if s.MaxItems != nil {
		n = min(n, max(*s.MaxItems, 0))
	}
	items := s.Items
	if items == nil {
		items = &schema{}
	}
	w.out.WriteByte('[')
	for i := range min(n, 64) {
		if i > 0 {
			w.out.WriteString(", ")
		}
		w.value(items, depth+1)
	}
	w.out.WriteByte(']')
}

// number writes a whole number within the bounds, or their middle if none is.
func (w *jsonWriter) number(s *schema) {
	low, high := s.bounds()
	if low > high {
		w.out.WriteString(strconv.FormatFloat((low+high)/2, 'f', -1, 64))
		return
	}
	span := int(min(high-low, 1000))
	w.out.WriteString(strconv.FormatFloat(low+float64(w.draw(span+1)), 'f', -1, 64))
}

// bounds are the least and the greatest whole number allowed, at most 100 apart where
// the schema leaves one open. When there is none, low is above high, and their middle
// lies between the schema's bounds.
func (s *schema) bounds() (low, high float64) {
	switch {
	case s.Minimum != nil:
		low = math.Ceil(*s.Minimum)
	case s.Above != nil:
		low = math.Floor(*s.Above) + 1
	}
	high = low + 100
	switch {
	case s.Maximum != nil:
		high = math.Floor(*s.Maximum)
	case s.Below != nil:
		high = math.Ceil(*s.Below) - 1
	}
	if s.Minimum == nil && s.Above == nil && high < low {
		low = high - 100
	}
	return low, high
}

// samples of the formats that a reader may check.
var samples = map[string]string{
	"date-time": "2026-01-02T03:04:05Z", "date": "2026-01-02", "time": "03:04:05Z",
	"email": "a@example.com", "uri": "https://example.com/", "ipv4": "192.0.2.1", "ipv6": "2001:db8::1",
	"uuid": "01234567-89ab-4cde-8f01-23456789abcd", "hostname": "example.com",
}

func (w *jsonWriter) string(s *schema) {
	if sample := samples[s.Format]; sample != "" {
		w.quoted(sample)
		return
	}
	text := w.words[w.draw(len(w.words))]
	for range 1 + w.draw(4) {
		text += " " + w.words[w.draw(len(w.words))]
	}
	for len(text) < min(s.MinLength, 4096) {
		text += " " + w.words[w.draw(len(w.words))]
	}
	if s.MaxLength != nil && len(text) > *s.MaxLength {
		text = text[:max(*s.MaxLength, 0)]
	}
	w.quoted(text)
}

func (w *jsonWriter) quoted(s string) {
	body, err := json.Marshal(s)
	if err != nil {
		body = []byte(`""`) // strings always encode
	}
	w.out.Write(body)
}

func (w *jsonWriter) raw(value json.RawMessage) {
	var compact bytes.Buffer
	if json.Compact(&compact, value) != nil { // it came out of a JSON decoder
		compact.WriteString("null")
	}
	w.out.Write(compact.Bytes())
}
