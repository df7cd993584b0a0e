// Package keda lets KEDA's own scaler code (pkg/scalers) read the triggers of
// deploy/keda from Tandem's endpoints and from a real Prometheus.
//
// It is a module of its own because KEDA brings 3,000 packages; `make e2e` builds
// them once (about 9 minutes of CPU). It names KEDA's operator and metrics adapter as
// tools, for `make keda`.
package keda
