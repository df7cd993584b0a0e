package standby

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/pools"
)

// What requests of another gateway use stays, though none comes to this one: it is not idle, and others make way first.
func TestAdapterManager_WhatAnotherGatewayUsesStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, m, engines := managed(t, func(cfg *pools.AdapterConfig) { cfg.PerServer, cfg.Idle = 2, time.Minute }, "ada", "bob")
		prepared(t, m.server, "bob").Release()
		uses := NewAdapterUses(f, nil, "", "own", slog.New(slog.DiscardHandler))
		report := func(of string) {
			uses.take([]byte(`{"r":"`+of+`","u":{"`+m.server.ID()+`":["ada","unheard"],"gone":["ada"]}}`), time.Now())
		}
		for range 3 {
			time.Sleep(30 * time.Second)
			report("another")
		}
		m.unloadIdle(t.Context(), time.Now())
		engines.took(t, "ada is used elsewhere", "10.0.0.1 /v1/unload_lora_adapter bob")
		m.server.ProbePassed(m.server.Health(), []pools.Model{{ID: "m"}, {ID: "ada", Parent: "m"}, {ID: "eve", Parent: "m"}}, time.Now())
		prepared(t, m.server, "eve").Release()
		time.Sleep(time.Second)
		report("another")
		if err := m.load(t.Context(), "bob"); err != nil {
			t.Fatal(err)
		}
		engines.took(t, "eve was used before ada", "10.0.0.1 /v1/unload_lora_adapter eve", "10.0.0.1 /v1/load_lora_adapter bob")
		time.Sleep(time.Minute + 1)
		report("own")
		uses.take([]byte(`{"r":`), time.Now())
		m.unloadIdle(t.Context(), time.Now())
		engines.took(t, "the other gateway uses it no more", "10.0.0.1 /v1/unload_lora_adapter ada")
	})
}

// A gateway reports what it uses for as long as it does, and nothing of what it has found on a server.
func TestAdapterUses_ReachTheOtherGateways(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: redisserver.Start(t).Addr()})
	defer func() { _ = client.Close() }()
	var servers []*pools.Server
	for _, id := range []string{"a", "b"} {
		f, m, _ := managed(t, nil, "ada", "bob")
		go NewAdapterUses(f, client, "tandem:", id, slog.New(slog.DiscardHandler)).Run(t.Context())
		m.server.LoadRequests().LastUse("bob", time.Now())
		servers = append(servers, m.server)
	}
	start := time.Now()
	lease := prepared(t, servers[0], "ada")
	defer lease.Release()
	reported := func(since time.Time) bool { return servers[1].LoadRequests().LastUseOfAll("ada", start).After(since) }
	for range 2 {
		since := time.Now()
		for deadline := since.Add(30 * time.Second); !reported(since); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("b does not hear that a uses ada")
			}
		}
	}
	if servers[1].LoadRequests().LastUseOfAll("bob", time.Now()).After(start) {
		t.Error("b hears that a uses bob, which it has found and not used")
	}
}
