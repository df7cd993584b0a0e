// Package keda reports to KEDA how many servers each pool should have, in three ways:
// gRPC (triggers external and external-push), JSON (trigger metrics-api) and
// Prometheus gauges (trigger prometheus). All read the same PublishedTargets.
//
// What is stale or unknown is an error in each of them and never a zero: KEDA then
// uses the fallback of the ScaledObject and does not scale in.
package keda
