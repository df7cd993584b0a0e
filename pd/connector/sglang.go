package connector

import (
	"bytes"
	"strconv"

	"github.com/tandem-gateway/tandem/pd/api"
)

// bootstrapPort is where an SGLang prefill server meets decode servers by default
// (--disaggregation-bootstrap-port).
const bootstrapPort = 8998

// sglang is SGLang's disaggregation: both engines get the request at once and meet in
// a room of the prefill server's bootstrap server. Prefill computes once decode has
// room for the KV, and decode's answer holds prefill's token too (sglang
// sgl-model-gateway, pd_router). A decode server cannot serve a request whole. Of several answers to a prompt (n) each
// engine takes all to the room of the first, where they fail, wait in vain or get what belongs to another (0.5.23
// srt/managers/tokenizer_manager.py, _handle_batch_request; sgl-project/sglang#40297).
var sglang = &Connector{
	Engine: "sglang", ConcurrentLegs: true, OneSample: true, RespondsAfterTransfer: true, Pairs: true, ReportsCachedTokens: true,
	Prefill: sglangPrefill, decode: sglangDecode,
	// The engines' word for a room that broke, whichever side broke it.
	TransferFault: func(body []byte) bool { return bytes.Contains(body, []byte("KVTransferError")) },
}

// sglangBefore22 is that of SGLang before 0.5.22, and of one whose version is not known. Its classes of messages and
// responses have no fields for where to meet and drop them, and a server of either mode refuses a request without a room
// (srt/entrypoints/anthropic and openai/protocol.py, PDRoutingFields; sgl-project/sglang#35229, #35497).
var sglangBefore22 = func() *Connector {
	c := *sglang
	c.Dialects = dialectsBefore22
	return &c
}()

var dialectsBefore22 = []*api.Dialect{api.Chat, api.Completions, api.Generate}

// sglangPrefill needs no cut to one token: a server in prefill mode ends there. On a rank that the room's number does
// not mean it prefills only where the request says that decode knows the rank (0.5.23
// srt/disaggregation/common/conn.py, CommonKVSender).
func sglangPrefill(t *Transfer) LegRequest {
	var room [8]api.Edit
	edits := append(append(room[:0], t.bootstrap()...), api.Set("stream", jsonFalse), api.Remove("stream_options"))
	if t.From.Rank != nil {
		rank := number(*t.From.Rank)
		edits = append(edits, api.Set("routed_dp_rank", rank), api.Set("disagg_prefill_dp_rank", rank))
	}
	return t.legWith(edits...)
}

func sglangDecode(t *Transfer, _ api.Answer) decodeLeg {
	var room [8]api.Edit
	edits := append(room[:0], t.bootstrap()...)
	if t.To.Rank != nil {
		edits = append(edits, api.Set("routed_dp_rank", number(*t.To.Rank)))
	}
	if t.From.Rank != nil {
		edits = append(edits, api.Set("disagg_prefill_dp_rank", number(*t.From.Rank)))
	}
	return decodeLeg{request: t.legWith(edits...), hasKV: true}
}

// bootstrap says in both legs where the engines meet: a room for each answer, in arrays when there
// are several.
func (t *Transfer) bootstrap() []api.Edit {
	if t.meeting != nil {
		return t.meeting
	}
	host, port := t.From.KVHostPort(bootstrapPort)
	quotedHost, rooms := quoted(host), t.roomsOfSGLang()
	list := func(appendTo func(to []byte, room int64) []byte) []byte {
		if len(rooms) == 1 {
			return appendTo(nil, rooms[0])
		}
		all := []byte{'['}
		for i, room := range rooms {
			if i > 0 {
				all = append(all, ',')
			}
			all = appendTo(all, room)
		}
		return append(all, ']')
	}
	t.meeting = []api.Edit{
		api.Set("bootstrap_host", list(func(to []byte, _ int64) []byte { return append(to, quotedHost...) })),
		api.Set("bootstrap_port", list(func(to []byte, _ int64) []byte { return strconv.AppendInt(to, int64(port), 10) })),
		api.Set("bootstrap_room", list(func(to []byte, room int64) []byte { return strconv.AppendInt(to, room, 10) })),
	}
	return t.meeting
}

// roomsOfSGLang are those of the answers that SGLang gives: it takes best_of, and gives n all the same
// (srt/entrypoints/openai/serving_completions.py). A request has no place for more rooms.
func (t *Transfer) roomsOfSGLang() []int64 {
	best, _ := t.body.Get("best_of").Int()
	n, _ := t.body.Get("n").Int()
	n = max(1, n)
	if t.dialect.Native || best <= n {
		return t.bootstrapRooms
	}
	return t.bootstrapRooms[:len(t.bootstrapRooms)/int(best)*int(n)]
}
