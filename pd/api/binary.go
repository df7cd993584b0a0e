package api

import "strings"

// BinaryType is the type of an answer that is numbers alone: the vectors that vLLM gives for an encoding_format of bytes
// or bytes_only (entrypoints/pooling/utils.py, build_pooling_bytes_streaming_response).
const BinaryType = "application/octet-stream"

// BinaryMetadata is the header in which the rest of such an answer is, its usage too, as JSON. With bytes_only there is
// none.
const BinaryMetadata = "Metadata"

// IsBinary reports whether an engine's answer of a type is numbers alone. What is generated never is.
func (d *Dialect) IsBinary(contentType string) bool {
	return !d.Split && strings.HasPrefix(contentType, BinaryType)
}
