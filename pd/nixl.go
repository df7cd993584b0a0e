package pd

import (
	"bytes"

	"github.com/tidwall/gjson"
)

// handoffField carries the hand-off in requests and answers of vLLM.
const handoffField = "kv_transfer_params"

// nixl is vLLM's NixlConnector: prefill returns where its blocks are, and decode reads
// them from there.
var nixl = &connector{pairs: true, alone: true, prefill: nixlPrefill, decode: nixlDecode}

// prefillParams asks a vLLM with the NIXL connector to keep the blocks of the
// prompt for a remote decode (vllm tests/v1/kv_connector/nixl_integration).
const prefillParams = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

func nixlPrefill(t *transfer) legRequest {
	return legRequest{body: oneToken(t, Edit{handoffField, []byte(prefillParams)})}
}

// nixlDecode gives decode the hand-off as prefill returned it.
func nixlDecode(t *transfer, answer []byte) handed {
	params := gjson.GetBytes(answer, handoffField)
	if !params.IsObject() {
		return handed{leg: legRequest{body: t.req.Body.Bytes()}}
	}
	edit := Edit{handoffField, bytes.Clone([]byte(params.Raw))}
	return handed{
		leg:    legRequest{body: t.req.Body.With(edit).Bytes()},
		kept:   true,
		tokens: int(params.Get("remote_num_tokens").Int()),
	}
}
