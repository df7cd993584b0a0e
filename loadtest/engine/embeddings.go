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
	in, p, err := e.poolInput(x)
	if err != nil {
		return err
	}
	if answered, err := e.inBytes(x, in, "embd", p); answered {
		return err
	}
	e.list(x, in.Model, "embd", "embedding", p, func(i int) map[string]any {
		if in.Format != "base64" {
			return map[string]any{"embedding": p.vectors[i]}
		}
		return map[string]any{"embedding": base64.StdEncoding.EncodeToString(appendNumbers(nil, p.vectors[i]))}
	})
	return nil
}

// appendNumbers appends a vector as bytes, four to a number.
func appendNumbers(b []byte, vector []float32) []byte {
	for _, f := range vector {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return b
}

// cohereEmbed serves /v2/embed, Cohere's API of embeddings as vLLM has it (entrypoints/pooling/embed), for texts as numbers.
func (e *Engine) cohereEmbed(x *exchange) error {
	var in struct {
		Model string   `json:"model"`
		Texts []string `json:"texts"`
	}
	if err := x.decode(&in); err != nil {
		return err
	}
	if len(in.Texts) == 0 {
		return badRequest("texts", "Exactly one of texts, images, or inputs must be provided, and it must be non-empty")
	}
	texts, err := json.Marshal(in.Texts)
	if err != nil {
		return err
	}
	p, err := e.pool(in.Model, texts)
	if err != nil {
		return err
	}
	writeJSON(x.w, http.StatusOK, map[string]any{
		"id": "embd-" + x.id, "embeddings": map[string]any{"float": p.vectors}, "texts": in.Texts, "response_type": "embeddings_by_type",
		"meta": map[string]any{"api_version": map[string]string{"version": "2"}, "billed_units": map[string]int{"input_tokens": e.usageOf(p.prompts, 0, 0).PromptTokens}},
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
