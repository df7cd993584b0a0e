package serving

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// certificateEnds is, for Prometheus, when the certificates of a gateway end.
type certificateEnds struct {
	at    *prometheus.GaugeVec
	files map[string]string // of certificates that are read again when they change, by their setting
}

func newCertificateEnds() *certificateEnds {
	return &certificateEnds{
		files: make(map[string]string),
		at: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tandem_certificate_expiry_timestamp_seconds",
			Help: "When a certificate ends, in Unix time, by the setting that names its file: of a chain the first that ends, of authorities (admin-client-ca, scaler-client-ca, decider-client-ca, engine-ca, redis-ca-file), which are read at the start, the last.",
		}, []string{"file"}),
	}
}

// watch takes over which files a configuration names.
func (e *certificateEnds) watch(cfg *config) {
	for setting, port := range cfg.encryptedPorts() {
		e.watchFile(setting+"-cert", port.Cert)
		e.recordAuthorities(setting+"-client-ca", port.ClientCA)
	}
	e.watchFile("redis-cert-file", cfg.redis.certFile)
	e.recordAuthorities("redis-ca-file", cfg.redis.caFile)
	e.recordAuthorities("engine-ca", cfg.engines.ca)
}

func (e *certificateEnds) watchFile(setting, file string) {
	if file != "" {
		e.files[setting] = file
	}
}

// recordAuthorities reads when the last of a file's authorities ends: with a new one beside it an old one may.
func (e *certificateEnds) recordAuthorities(setting, file string) {
	if ends := endsOf(file); len(ends) > 0 {
		e.at.WithLabelValues(setting).Set(float64(slices.MaxFunc(ends, time.Time.Compare).Unix()))
	}
}

// readAgain reads when the certificates end whose files may have changed. Of a file that is broken it stays.
func (e *certificateEnds) readAgain() {
	for setting, file := range e.files {
		if ends := endsOf(file); len(ends) > 0 {
			e.at.WithLabelValues(setting).Set(float64(slices.MinFunc(ends, time.Time.Compare).Unix()))
		}
	}
}

// endsOf are when the certificates of a PEM file end, none where it cannot be read.
func endsOf(file string) (ends []time.Time) {
	rest, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return ends
		}
		if certificate, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			ends = append(ends, certificate.NotAfter)
		}
	}
}

// Describe implements prometheus.Collector.
func (e *certificateEnds) Describe(ch chan<- *prometheus.Desc) { e.at.Describe(ch) }

// Collect implements prometheus.Collector.
func (e *certificateEnds) Collect(ch chan<- prometheus.Metric) {
	e.readAgain()
	e.at.Collect(ch)
}
