package main

// renamedMetrics is for those whose dashboards and alerts know the names of before.
const renamedMetrics = `
## Old names

Names and labels that were others before. What is not here kept both.

| before | now |
|---|---|
| ` + "`tandem_alone_total`" + ` | ` + "`tandem_aggregated_requests_total`" + ` |
| ` + "`tandem_breaker_state{state}`, 1 for the state it is in" + ` | ` + "`tandem_breaker_state`, 0 closed, 1 half open, 2 open" + ` |
| ` + "`tandem_canaries_total`" + ` | ` + "`tandem_probe_requests_total`" + ` |
| ` + "`tandem_capacity_price`" + ` | ` + "`tandem_capacity_price_per_hour`" + ` |
| ` + "`tandem_decider_fallbacks_total`" + ` | ` + "`tandem_leader_fallbacks_total`" + ` |
| ` + "`tandem_decider_followed`" + ` | ` + "`tandem_leader_followed`" + ` |
| ` + "`tandem_decider_followers`" + ` | ` + "`tandem_leader_followers`" + ` |
| ` + "`tandem_decider_silence_seconds`" + ` | ` + "`tandem_leader_silence_seconds`" + ` |
| ` + "`tandem_decider_turns_total`" + ` | ` + "`tandem_leader_remote_requests_total`" + ` |
| ` + "`tandem_decode_first_event_seconds{server}`, `tandem_itl_seconds{server}`, `tandem_prefill_seconds{server}`" + ` | the same by ` + "`model`" + `; by server sum and number: ` + "`tandem_server_decode_first_event_seconds`, `tandem_server_itl_seconds`, `tandem_server_prefill_seconds`" + ` |
| ` + "`tandem_decode_handoffs_total`" + ` | ` + "`tandem_handoffs_retained_total`" + ` |
| ` + "`tandem_doubt_waits_total`, `tandem_server_in_doubt{role}`" + ` | ` + "`tandem_unresponsive_waits_total`, `tandem_server_unresponsive`" + ` |
| ` + "`tandem_foreign_handoffs_total`" + ` | ` + "`tandem_handoffs_external_total`" + ` |
| ` + "`tandem_handoff_missing_total`" + ` | ` + "`tandem_handoffs_missing_total`" + ` |
| ` + "`tandem_held_requests`" + ` | ` + "`tandem_pool_waiting_for_capacity_requests`" + ` |
| ` + "`tandem_kv_events_dropped_total{reason}`, `tandem_kv_resets_total{reason}`" + ` | the same without ` + "`reason`, which `/debug/kv` says" + ` |
| ` + "`tandem_kv_hit_tokens_total{server}`" + ` | the same by ` + "`model`" + ` |
| ` + "`tandem_kv_matches_total`" + ` | ` + "`tandem_kv_lookups_total`" + ` |
| ` + "`tandem_kv_whole`" + ` | ` + "`tandem_kv_complete`" + ` |
| ` + "`tandem_limited_total`" + ` | ` + "`tandem_limited_requests_total`" + ` |
| ` + "`tandem_migrations_total`" + ` | ` + "`tandem_continuations_total`" + ` |
| ` + "`tandem_order_looks_total`" + ` | ` + "`tandem_queue_evaluations_total`" + ` |
| ` + "`tandem_pool_kv_tokens{state}`" + ` | ` + "`tandem_pool_kv_used_tokens`, `tandem_pool_kv_capacity_tokens`" + ` |
| ` + "`tandem_requests_total`, `tandem_request_duration_seconds`" + ` | the same, with ` + "`path`" + ` besides |
| ` + "`tandem_server_engine_load{kind}`" + ` | ` + "`tandem_engine_requests{state}`, `tandem_engine_kv_usage_ratio`, `tandem_engine_kv_capacity_tokens`; tokens: `tandem_server_tokens`" + ` |
| ` + "`tandem_server_in_flight_tokens`" + ` | ` + "`tandem_server_tokens`" + ` |
| ` + "`tandem_server_up{role}`" + ` | ` + "`tandem_server_up`, joined with `tandem_server_info`" + ` |
| ` + "`tandem_slo_attainment`" + ` | ` + "`tandem_slo_attainment_ratio`" + ` |
| ` + "`tandem_tokens_asks_total`" + ` | ` + "`tandem_tokenize_calls_total`" + ` |
`
