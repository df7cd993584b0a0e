package engine

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/http"
)

// embeddingSize is the length of a vector.
const embeddingSize = 64

// embeddings serves /v1/embeddings: a unit vector that is a function of the tokens
// and the model. It takes no place in a batch.
func (e *Engine) embeddings(x *exchange) error {
	var in struct {
		Model  string          `json:"model"`
		Input  json.RawMessage `json:"input"`
		Format string          `json:"encoding_format"` // float (also if not given) or base64
	}
	if err := x.decode(&in); err != nil {
		return err
	}
	adapter, err := e.adapterOf(in.Model)
	if err != nil {
		return err
	}
	inputs, err := e.parsePrompts(in.Input, true)
	if err != nil {
		return err
	}
	type entry struct {
		Index     int    `json:"index"`
		Object    string `json:"object"`
		Embedding any    `json:"embedding"`
	}
	entries := []entry{}
	for i, ids := range inputs {
		if err := e.checkLength(len(ids), &sampling{maxTokens: -1}); err != nil {
			return err
		}
		vector := e.embed(ids, adapter)
		var value any = vector
		if in.Format == "base64" {
			var b []byte
			for _, f := range vector {
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
			}
			value = base64.StdEncoding.EncodeToString(b)
		}
		entries = append(entries, entry{i, "embedding", value})
	}
	writeJSON(x.w, http.StatusOK, map[string]any{
		"id": "embd-" + x.id, "object": "list", "created": now(), "model": e.modelName(in.Model),
		"data": entries, "usage": e.usageOf(inputs, 0, 0),
	})
	return nil
}

func (e *Engine) embed(ids []int32, adapter string) []float32 {
	p := e.language.start(adapter)
	for _, id := range ids {
		p = p.after(id)
	}
	vector := make([]float32, embeddingSize)
	sum := 0.0
	for i := range vector {
		v := float64(int32(p.draw(i))) / math.MaxInt32
		vector[i] = float32(v)
		sum += v * v
	}
	for i := range vector {
		vector[i] /= float32(math.Sqrt(sum))
	}
	return vector
}
