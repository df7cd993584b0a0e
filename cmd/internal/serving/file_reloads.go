package serving

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-gateway/tandem/cmd/internal/porttls"
)

// FileReloads is, for Prometheus, whether this gateway runs with what its files say. A file has series once it was read.
type FileReloads struct {
	successful   *prometheus.GaugeVec
	succeededAt  *prometheus.GaugeVec
	needRestart  prometheus.Gauge
	certificates *certificateEnds
}

// NewFileReloads returns that of no file.
func NewFileReloads() *FileReloads {
	return &FileReloads{
		certificates: newCertificateEnds(),
		successful: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tandem_file_reload_successful",
			Help: "1 if the file could be used when it was last read, 0 if it is broken and what was read before stays, by file: configuration, keys, and the settings that name secrets (engine-key-file, trtllm-key-file, admin-token-file, redis-password-file, redis-sentinel-password-file, kv-secret-file), certificates (tls-cert, admin-cert, picker-cert, scaler-cert, decider-cert) and authorities (admin-client-ca, scaler-client-ca, decider-client-ca, engine-ca, redis-ca-file).",
		}, []string{"file"}),
		succeededAt: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tandem_file_reload_success_timestamp_seconds", Help: "When the file was last read and could be used, in Unix time, by file as tandem_file_reload_successful.",
		}, []string{"file"}),
		needRestart: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tandem_settings_need_restart",
			Help: "Settings that differ from those in use and take effect at the next start: of the configuration file as it could last be used. The log names them.",
		}),
	}
}

func (r *FileReloads) collectors() []prometheus.Collector {
	return []prometheus.Collector{r.successful, r.succeededAt, r.needRestart, r.certificates}
}

// Describe implements prometheus.Collector.
func (r *FileReloads) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range r.collectors() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (r *FileReloads) Collect(ch chan<- prometheus.Metric) {
	for _, c := range r.collectors() {
		c.Collect(ch)
	}
}

// record takes what reading a file came to, nil where it could be used.
func (r *FileReloads) record(file string, err error) {
	if err != nil {
		r.successful.WithLabelValues(file).Set(0)
		return
	}
	r.successful.WithLabelValues(file).Set(1)
	r.succeededAt.WithLabelValues(file).SetToCurrentTime()
}

// watchCertificates records what becomes of the certificates of all ports, and of the authorities.
func (r *FileReloads) watchCertificates(cfg *config) {
	record := func(file string) func(error) { return func(err error) { r.record(file, err) } }
	for port, files := range cfg.encryptedPorts() {
		files.OnRead, files.OnReadCA = record(port+"-cert"), record(port+"-client-ca")
	}
	cfg.engines.ca.OnRead, cfg.redis.ca.OnRead = record("engine-ca"), record("redis-ca-file")
	r.certificates.watch(cfg)
}

// encryptedPorts are the ports that may speak TLS, as their settings name them.
func (c *config) encryptedPorts() map[string]*porttls.Config {
	return map[string]*porttls.Config{
		"tls": &c.ports.clientTLS, "admin": &c.ports.adminTLS, "picker": &c.ports.pickerTLS,
		"scaler": &c.scaling.keda.tls, "decider": &c.decider.tls,
	}
}
