package engine

import (
	"encoding/base64"
	"encoding/binary"
	"math"
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
	e.list(x, in.Model, "embd", "embedding", p, func(i int) map[string]any {
		if in.Format != "base64" {
			return map[string]any{"embedding": p.vectors[i]}
		}
		var b []byte
		for _, f := range p.vectors[i] {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
		}
		return map[string]any{"embedding": base64.StdEncoding.EncodeToString(b)}
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
