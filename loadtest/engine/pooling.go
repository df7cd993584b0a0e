package engine

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
)

// The APIs of pooling models beside embeddings (vllm/entrypoints/pooling). All values are
// functions of the tokens and the model.

// poolingRoutes are the paths of embeddings and of their like.
func poolingRoutes() map[string]route {
	routes := map[string]route{"POST /v1/embeddings": {pathModel, (*Engine).embeddings}, "POST /v2/embed": {pathModel, (*Engine).cohereEmbed}, "POST /pooling": {pathModel, (*Engine).pooling}}
	for _, path := range []string{"/rerank", "/v1/rerank", "/v2/rerank"} {
		routes["POST "+path] = route{pathModel, (*Engine).rerank}
	}
	for _, path := range []string{"/score", "/v1/score"} {
		routes["POST "+path] = route{pathModel, (*Engine).score}
	}
	routes["POST /classify"] = route{pathModel, (*Engine).classify}
	return routes
}

// pooled is the vectors of a prompt or a list of them.
type pooled struct {
	prompts [][]int32
	vectors [][]float32
}

// pool computes the vectors of a field of prompts.
func (e *Engine) pool(model string, prompts json.RawMessage) (pooled, error) {
	adapter, err := e.adapterOf(model)
	if err != nil {
		return pooled{}, err
	}
	p := pooled{}
	if p.prompts, err = e.parsePrompts(prompts, true); err != nil {
		return pooled{}, err
	}
	for _, ids := range p.prompts {
		if err := e.checkLength(len(ids), &sampling{maxTokens: -1}); err != nil {
			return pooled{}, err
		}
		p.vectors = append(p.vectors, e.embed(ids, adapter))
	}
	return p, nil
}

// poolRequest is a request for something of each of its prompts.
type poolRequest struct {
	Model  string          `json:"model"`
	Input  json.RawMessage `json:"input"`
	Format string          `json:"encoding_format"` // of embeddings: float (also if not given) or base64; of these and of /pooling: bytes, bytes_only
}

// poolInput reads such a request and computes its vectors.
func (e *Engine) poolInput(x *exchange) (in poolRequest, p pooled, err error) {
	if err = x.decode(&in); err != nil {
		return in, p, err
	}
	p, err = e.pool(in.Model, in.Input)
	return in, p, err
}

// list is the answer with one entry for each prompt; its id begins with prefix.
func (e *Engine) list(x *exchange, model, prefix, kind string, p pooled, entry func(i int) map[string]any) {
	entries := []map[string]any{}
	for i := range p.prompts {
		fields := entry(i)
		fields["index"], fields["object"] = i, kind
		entries = append(entries, fields)
	}
	writeJSON(x.w, http.StatusOK, map[string]any{
		"id": prefix + "-" + x.id, "object": "list", "created": now(), "model": e.modelName(model),
		"data": entries, "usage": e.usageOf(p.prompts, 0, 0),
	})
}

// inBytes answers with the vectors' numbers alone, where the client asks for that. What JSON would say of them is in a
// header, and with bytes_only nowhere (entrypoints/pooling/utils.py, build_pooling_bytes_streaming_response).
func (e *Engine) inBytes(x *exchange, in poolRequest, prefix string, p pooled) (answered bool, err error) {
	if in.Format != "bytes" && in.Format != "bytes_only" {
		return false, nil
	}
	var body []byte
	places := []map[string]any{}
	for i, vector := range p.vectors {
		start := len(body)
		body = appendNumbers(body, vector)
		places = append(places, map[string]any{"index": i, "embed_dtype": "float32", "endianness": "native", "start": start, "end": len(body), "shape": []int{len(vector)}})
	}
	if in.Format == "bytes" {
		metadata, err := json.Marshal(map[string]any{
			"id": prefix + "-" + x.id, "created": now(), "model": e.modelName(in.Model), "data": places, "usage": e.usageOf(p.prompts, 0, 0),
		})
		if err != nil {
			return true, err
		}
		x.w.Header().Set("Metadata", string(metadata))
	}
	x.w.Header().Set("Content-Type", "application/octet-stream")
	_, err = x.w.Write(body)
	return true, err
}

// pooling serves /pooling: the vectors as they are.
func (e *Engine) pooling(x *exchange) error {
	in, p, err := e.poolInput(x)
	if err != nil {
		return err
	}
	if answered, err := e.inBytes(x, in, "pooling", p); answered {
		return err
	}
	e.list(x, in.Model, "pooling", "pooling", p, func(i int) map[string]any { return map[string]any{"data": p.vectors[i]} })
	return nil
}

// classify serves /classify: the probabilities of two labels.
func (e *Engine) classify(x *exchange) error {
	in, p, err := e.poolInput(x)
	if err != nil {
		return err
	}
	e.list(x, in.Model, "classify", "classify", p, func(i int) map[string]any {
		first := 1 / (1 + math.Exp(-float64(p.vectors[i][0])))
		label := "LABEL_0"
		if first < 0.5 {
			label = "LABEL_1"
		}
		return map[string]any{"label": label, "probs": []float64{first, 1 - first}, "num_classes": 2}
	})
	return nil
}

// score serves /score: how much the first text is like each of the second.
func (e *Engine) score(x *exchange) error {
	var in struct {
		Model     string          `json:"model"`
		Queries   json.RawMessage `json:"queries"`
		Documents json.RawMessage `json:"documents"`
		Text1     json.RawMessage `json:"text_1"`
		Text2     json.RawMessage `json:"text_2"`
	}
	if err := x.decode(&in); err != nil {
		return err
	}
	if in.Queries == nil {
		in.Queries, in.Documents = in.Text1, in.Text2
	}
	query, documents, err := e.poolPairs(in.Model, in.Queries, in.Documents)
	if err != nil {
		return err
	}
	e.list(x, in.Model, "score", "score", documents, func(i int) map[string]any {
		return map[string]any{"score": likeness(query.vectors[i%len(query.vectors)], documents.vectors[i])}
	})
	return nil
}

// rerank serves /rerank: the documents, those that are most like the query first.
func (e *Engine) rerank(x *exchange) error {
	var in struct {
		Model     string          `json:"model"`
		Query     json.RawMessage `json:"query"`
		Documents json.RawMessage `json:"documents"`
		TopN      int             `json:"top_n"` // 0: all
	}
	if err := x.decode(&in); err != nil {
		return err
	}
	query, documents, err := e.poolPairs(in.Model, in.Query, in.Documents)
	if err != nil {
		return err
	}
	type result struct {
		Index     int     `json:"index"`
		Relevance float64 `json:"relevance_score"`
	}
	results := []result{}
	for i := range documents.vectors {
		results = append(results, result{i, likeness(query.vectors[0], documents.vectors[i])})
	}
	slices.SortStableFunc(results, func(a, b result) int {
		switch {
		case a.Relevance > b.Relevance:
			return -1
		case a.Relevance < b.Relevance:
			return 1
		}
		return 0
	})
	if in.TopN > 0 {
		results = results[:min(in.TopN, len(results))]
	}
	usage := e.usageOf(append(query.prompts, documents.prompts...), 0, 0)
	writeJSON(x.w, http.StatusOK, map[string]any{
		"id": "rerank-" + x.id, "model": e.modelName(in.Model), "results": results,
		"usage": map[string]int{"prompt_tokens": usage.PromptTokens, "total_tokens": usage.TotalTokens},
	})
	return nil
}

// poolPairs computes the vectors of two fields.
func (e *Engine) poolPairs(model string, first, second json.RawMessage) (a, b pooled, err error) {
	if a, err = e.pool(model, first); err != nil {
		return a, b, err
	}
	b, err = e.pool(model, second)
	return a, b, err
}

// likeness of two unit vectors, 0..1.
func likeness(a, b []float32) float64 {
	sum := 0.0
	for i := range a {
		sum += float64(a[i] * b[i])
	}
	return (1 + sum) / 2
}
