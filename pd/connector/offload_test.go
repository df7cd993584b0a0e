package connector

import (
	"testing"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// Each rank's tier has the port behind that of the one before it; an address that is
// configured is the rank's own.
func TestOffload_NamesThePortOfTheRank(t *testing.T) {
	two := 2
	body, _ := api.ParseBody([]byte(`{"model":"m"}`))
	for _, c := range []struct {
		from pools.Spec
		host string
		port int64
	}{
		{pools.Spec{URL: "http://10.0.0.1:8000"}, "10.0.0.1", 5710},
		{pools.Spec{URL: "http://10.0.0.1:8000", Rank: &two}, "10.0.0.1", 5712},
		{pools.Spec{URL: "http://10.0.0.1:8000", Rank: &two, KVAddress: "10.1.0.1:7779"}, "10.1.0.1", 7779},
	} {
		tr := &Transfer{dialect: api.Chat, body: body, ID: "t-1", From: &pools.Server{Spec: c.from}}
		told := gjson.GetBytes(offload.decode(tr, api.Answer{}).request.Body.Bytes(), "kv_transfer_params.remote_prefiller")
		if told.Get("remote_host").String() != c.host || told.Get("remote_port").Int() != c.port || told.Get("kv_request_id").String() != "t-1" {
			t.Errorf("%+v: decode is told %s", c.from, told)
		}
	}
}

// With both connectors in the engine prefill keeps its blocks for decode over NIXL, and
// pulls the prompt's beginning through the other one.
func TestNIXL_PrefillGetsTheAddressOfAThirdServer(t *testing.T) {
	body, _ := api.ParseBody([]byte(`{"model":"m"}`))
	third := &pools.Server{Spec: pools.Spec{URL: "http://10.0.0.3:8000", KVAddress: "10.0.0.3:7777"}}
	for _, source := range []*pools.Server{nil, third} {
		leg := nixlPrefill(&Transfer{dialect: api.Chat, body: body, Source: source}).Body.Bytes()
		told := gjson.GetBytes(leg, "kv_transfer_params")
		if !gjson.ValidBytes(leg) || !told.Get("do_remote_decode").Bool() {
			t.Errorf("%s", leg)
		}
		if from := told.Get("remote_kv_source"); from.Exists() != (source != nil) || source != nil && from.Get("remote_port").Int() != 7777 {
			t.Errorf("the source is %s", from)
		}
	}
}
