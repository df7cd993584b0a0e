package connector

import (
	"testing"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

func TestSGLang_BodiesOfBothLegs(t *testing.T) {
	one, three := 1, 3
	for _, c := range []struct {
		name            string
		body            string
		from, to        pools.Spec
		rooms           []int64
		prefill, decode string
	}{
		{"one answer, the usual port", `{"model":"m","stream":true,"stream_options":{"include_usage":true},"max_tokens":9}`,
			pools.Spec{URL: "http://10.0.0.1:30000"}, pools.Spec{URL: "http://10.0.0.2:30000"}, []int64{9007199254740993},
			`{"model":"m","stream":false,"max_tokens":9,"bootstrap_host":"10.0.0.1","bootstrap_port":8998,"bootstrap_room":9007199254740993}`,
			`{"model":"m","stream":true,"stream_options":{"include_usage":true},"max_tokens":9,"bootstrap_host":"10.0.0.1","bootstrap_port":8998,"bootstrap_room":9007199254740993}`},
		{"several answers, ranks, an address of its own", `{"model":"m","n":2}`,
			pools.Spec{URL: "http://10.0.0.1:30000", Rank: &one, KVAddress: "[fd00::1]:9000"}, pools.Spec{URL: "http://10.0.0.2:30000", Rank: &three}, []int64{5, 6},
			`{"model":"m","n":2,"bootstrap_host":["fd00::1","fd00::1"],"bootstrap_port":[9000,9000],"bootstrap_room":[5,6],"stream":false,"routed_dp_rank":1,"disagg_prefill_dp_rank":1}`,
			`{"model":"m","n":2,"bootstrap_host":["fd00::1","fd00::1"],"bootstrap_port":[9000,9000],"bootstrap_room":[5,6],"routed_dp_rank":3,"disagg_prefill_dp_rank":1}`},
		{"more samples than answers of two prompts", `{"model":"m","n":2,"best_of":3}`,
			pools.Spec{URL: "http://10.0.0.1:30000"}, pools.Spec{URL: "http://10.0.0.2:30000"}, []int64{5, 6, 7, 8, 9, 10},
			`{"model":"m","n":2,"best_of":3,"bootstrap_host":["10.0.0.1","10.0.0.1","10.0.0.1","10.0.0.1"],"bootstrap_port":[8998,8998,8998,8998],"bootstrap_room":[5,6,7,8],"stream":false}`,
			`{"model":"m","n":2,"best_of":3,"bootstrap_host":["10.0.0.1","10.0.0.1","10.0.0.1","10.0.0.1"],"bootstrap_port":[8998,8998,8998,8998],"bootstrap_room":[5,6,7,8]}`},
		{"samples of which one is answered", `{"model":"m","best_of":2}`,
			pools.Spec{URL: "http://10.0.0.1:30000"}, pools.Spec{URL: "http://10.0.0.2:30000"}, []int64{5, 6},
			`{"model":"m","best_of":2,"bootstrap_host":"10.0.0.1","bootstrap_port":8998,"bootstrap_room":5,"stream":false}`,
			`{"model":"m","best_of":2,"bootstrap_host":"10.0.0.1","bootstrap_port":8998,"bootstrap_room":5}`},
	} {
		body, err := api.ParseBody([]byte(c.body))
		if err != nil {
			t.Fatal(err)
		}
		tr := &Transfer{dialect: api.Chat, body: body, From: &pools.Server{Spec: c.from}, To: &pools.Server{Spec: c.to}, bootstrapRooms: c.rooms}
		if got := string(sglangPrefill(tr).Body.Bytes()); got != c.prefill {
			t.Errorf("%s: prefill\ngot  %s\nwant %s", c.name, got, c.prefill)
		}
		if got := string(sglangDecode(tr, api.Answer{}).request.Body.Bytes()); got != c.decode {
			t.Errorf("%s: decode\ngot  %s\nwant %s", c.name, got, c.decode)
		}
	}
}
