// Package deploy carries those of its files that a program of ours starts servers with.
package deploy

import _ "embed"

// AlertRules are Prometheus' recording and alert rules.
//
//go:embed chart/alerts/tandem.yaml
var AlertRules []byte

// Jaeger is the configuration of a Jaeger that keeps traces in memory.
//
//go:embed jaeger.yaml
var Jaeger string
