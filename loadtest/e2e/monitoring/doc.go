// Package monitoring runs what deploy/dashboards and deploy/alerts ask against a real Prometheus that
// scrapes a gateway under a little load. Its tests need what `make e2e` brings.
package monitoring
