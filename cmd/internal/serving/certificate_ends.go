package serving

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// certificateEnds is, for Prometheus, when the certificates of a gateway end.
type certificateEnds struct {
	at       *prometheus.GaugeVec
	lifetime *prometheus.GaugeVec
	files    map[string]string // of certificates, by their setting
	trusted  map[string]string // of authorities
}

func newCertificateEnds() *certificateEnds {
	return &certificateEnds{
		files:   make(map[string]string),
		trusted: make(map[string]string),
		at: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tandem_certificate_expiry_timestamp_seconds",
			Help: "When a certificate ends, in Unix time, by the setting that names its file: of a chain the first that ends, of authorities (admin-client-ca, scaler-client-ca, decider-client-ca, engine-ca, redis-ca-file) the last.",
		}, []string{"file"}),
		lifetime: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tandem_certificate_lifetime_seconds",
			Help: "From the begin to the end of the certificate of tandem_certificate_expiry_timestamp_seconds, by file as that.",
		}, []string{"file"}),
	}
}

// watch takes over which files a configuration names.
func (e *certificateEnds) watch(cfg *config) {
	for setting, port := range cfg.encryptedPorts() {
		nameFile(e.files, setting+"-cert", port.Cert)
		nameFile(e.trusted, setting+"-client-ca", port.ClientCA)
	}
	nameFile(e.files, "redis-cert-file", cfg.redis.certFile)
	nameFile(e.trusted, "redis-ca-file", cfg.redis.ca.File)
	nameFile(e.trusted, "engine-ca", cfg.engines.ca.File)
}

func nameFile(files map[string]string, setting, file string) {
	if file != "" {
		files[setting] = file
	}
}

func (e *certificateEnds) record(setting string, c *x509.Certificate) {
	e.at.WithLabelValues(setting).Set(float64(c.NotAfter.Unix()))
	e.lifetime.WithLabelValues(setting).Set(c.NotAfter.Sub(c.NotBefore).Seconds())
}

// readAgain reads when the certificates end whose files may have changed. Of a file that is broken it stays. Of
// authorities the last counts: with a new one beside it an old one may end.
func (e *certificateEnds) readAgain() {
	for setting, file := range e.files {
		if all := certificatesIn(file); len(all) > 0 {
			e.record(setting, slices.MinFunc(all, compareEnds))
		}
	}
	for setting, file := range e.trusted {
		if all := certificatesIn(file); len(all) > 0 {
			e.record(setting, slices.MaxFunc(all, compareEnds))
		}
	}
}

func compareEnds(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }

// certificatesIn are those of a PEM file, none where it cannot be read.
func certificatesIn(file string) (all []*x509.Certificate) {
	rest, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return all
		}
		if certificate, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			all = append(all, certificate)
		}
	}
}

// Describe implements prometheus.Collector.
func (e *certificateEnds) Describe(ch chan<- *prometheus.Desc) {
	e.at.Describe(ch)
	e.lifetime.Describe(ch)
}

// Collect implements prometheus.Collector.
func (e *certificateEnds) Collect(ch chan<- prometheus.Metric) {
	e.readAgain()
	e.at.Collect(ch)
	e.lifetime.Collect(ch)
}
