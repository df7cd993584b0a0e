// Package envoy proves the endpoint picker behind a real Envoy: requests go through it to
// simulated engines, the decode ones behind llm-d's sidecar, and `tandem serve --picker` names
// the servers. All of it is tests; `make e2e-envoy` runs them, and `make e2e` a short form.
//
// Envoy is set up in two ways (envoy.yaml):
//
//   - as llm-d's standalone chart does (llm-d-router at ebab687, August 2026,
//     config/charts/llm-d-router-standalone/values.yaml): a cluster of type ORIGINAL_DST goes to
//     the address in the header x-gateway-destination-endpoint, which must be one address;
//   - as gateways that know the servers of an InferencePool do: the policy override_host
//     (Envoy 1.40, envoy.extensions.load_balancing_policies.override_host.v3) goes to the address
//     in the dynamic metadata envoy.lb, on a retry to the next of the list, and tells the picker
//     which one it took.
package envoy
