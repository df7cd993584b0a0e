package serving

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-gateway/tandem/cmd/internal/porttls"
)

// FileReloads is, for Prometheus, whether this gateway runs with what its files say. A file has series once it was read.
type FileReloads struct {
	successful   *prometheus.GaugeVec
	succeededAt  *prometheus.GaugeVec
	needRestart  prometheus.Gauge
	certificates *certificateEnds

	mu      sync.Mutex     // guards the rest
	waiting map[string]int // settings that take effect at the next start, by the file that says so
}

// NewFileReloads returns that of no file.
func NewFileReloads() *FileReloads {
	return &FileReloads{
		certificates: newCertificateEnds(),
		successful: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tandem_file_reload_successful",
			Help: "1 if the file could be used when it was last read, 0 if it is broken and what was read before stays, by file: configuration, keys, and the settings that name secrets (engine-key-file, trtllm-key-file, admin-token-file, redis-password-file, redis-sentinel-password-file) and certificates (tls-cert, admin-cert, picker-cert, scaler-cert, decider-cert).",
		}, []string{"file"}),
		succeededAt: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tandem_file_reload_success_timestamp_seconds", Help: "When the file was last read and could be used, in Unix time, by file as tandem_file_reload_successful.",
		}, []string{"file"}),
		waiting: make(map[string]int),
		needRestart: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tandem_settings_need_restart",
			Help: "Settings that differ from those in use and take effect at the next start: of the configuration file as it could last be used, and kv-secret-file. The log names them.",
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

// waitForRestart takes how many settings of a file take effect at the next start.
func (r *FileReloads) waitForRestart(file string, settings int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting[file] = settings
	all := 0
	for _, n := range r.waiting {
		all += n
	}
	r.needRestart.Set(float64(all))
}

// watchCertificates records what becomes of the certificates of all ports.
func (r *FileReloads) watchCertificates(cfg *config) {
	for port, files := range cfg.encryptedPorts() {
		files.OnRead = func(err error) { r.record(port+"-cert", err) }
	}
	r.certificates.watch(cfg)
}

// encryptedPorts are the ports that may speak TLS, as their settings name them.
func (c *config) encryptedPorts() map[string]*porttls.Config {
	return map[string]*porttls.Config{
		"tls": &c.ports.clientTLS, "admin": &c.ports.adminTLS, "picker": &c.ports.pickerTLS,
		"scaler": &c.scaling.keda.tls, "decider": &c.decider.tls,
	}
}
