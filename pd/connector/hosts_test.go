package connector

import (
	"slices"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/pd/api"
)

func TestHostsIn_AFieldOfAHandoff(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		field string
		hosts []string
	}{
		{``, nil}, {`null`, nil}, {`[]`, nil},
		{`7`, []string{""}}, {`""`, []string{""}}, {`{"host":"10.0.0.1"}`, []string{""}}, {`[7,null]`, []string{"", ""}},
		{`"10.0.0.1:1;10.6.6.6"`, []string{"10.0.0.1:1;10.6.6.6"}}, {`"10.0.0.1:1;10.6.6.6:2"`, []string{"10.0.0.1:1;10.6.6.6:2"}},
		{`"tcp://10.0.0.1/;10.6.6.6:2"`, []string{"tcp://10.0.0.1/;10.6.6.6:2"}}, {`"tcp://10.0.0.1@10.6.6.6"`, []string{"tcp://10.0.0.1@10.6.6.6"}},
		{`"` + strings.Repeat("a", maxHost+1) + `"`, []string{""}},
		{`"10.0.0.1"`, []string{"10.0.0.1"}},
		{`"prefill-0.prefill"`, []string{"prefill-0.prefill"}},
		{`"fd00::1"`, []string{"fd00::1"}},
		{`"10.0.0.1:5600"`, []string{"10.0.0.1"}},
		{`"prefill-0:5600"`, []string{"prefill-0"}},
		{`"[fd00::1]:5600"`, []string{"fd00::1"}},
		{`"tcp://10.0.0.1:5000"`, []string{"10.0.0.1"}},
		{`["tcp://10.0.0.1:5000","tcp://[fd00::1]:5000"]`, []string{"10.0.0.1", "fd00::1"}},
	} {
		if got := hostsIn(api.Value(x.field)); !slices.Equal(got, x.hosts) {
			t.Errorf("%s: %q", x.field, got)
		}
	}
	many := []byte(`["a"`)
	for range 1000 {
		many = append(many, `,"a"`...)
	}
	if hosts := hostsIn(append(many, ']')); len(hosts) != maxHosts+1 || hosts[maxHosts] != "" {
		t.Errorf("of many: %q", hosts)
	}
}

func TestHostsIn_WhatConnectorsReadOfAnswers(t *testing.T) {
	t.Parallel()
	body, err := api.ParseBody([]byte(`{"messages":[]}`))
	if err != nil {
		t.Fatal(err)
	}
	leg := &Transfer{dialect: api.Chat, body: body, bootstrapRooms: []int64{5}}
	for _, x := range []struct {
		by     *Connector
		answer string
	}{
		{nixl, `{"kv_transfer_params":{"do_remote_prefill":true,"remote_host":"10.0.0.1","remote_port":5600}}`},
		{trtllm, `{"choices":[{"disaggregated_params":{"ctx_request_id":1,"ctx_info_endpoint":["tcp://10.0.0.1:5000"]}}]}`},
	} {
		if got := x.by.decode(leg, answered(t, leg.dialect, x.answer)); !got.hasKV || !slices.Equal(got.hosts, []string{"10.0.0.1"}) {
			t.Errorf("%s: %v", x.by.Engine, got.hosts)
		}
	}
}
