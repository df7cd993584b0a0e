// Package version is what this build says of itself: to people, in metrics, in traces.
package version

import (
	"cmp"
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
)

// release is the version that a build without the repository was given:
// -ldflags "-X github.com/tandem-gateway/tandem/cmd/internal/version.release=v1.2.3".
var release string

// String is the release, or else what the Go toolchain knows of the build.
func String() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return cmp.Or(release, "unknown")
	}
	v := cmp.Or(release, info.Main.Version)
	if at := revision(info); at != "" {
		v += " " + at
	}
	return v
}

// revision is the beginning of the commit that was built, "" where the build did not see it.
func revision(info *debug.BuildInfo) string {
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return s.Value[:12]
		}
	}
	return ""
}

// Collector is the metric tandem_build_info: 1, with the build as labels.
func Collector() prometheus.Collector {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "tandem_build_info", Help: "1, with the version of this build and of the Go that built it.",
	}, []string{"version", "goversion"})
	g.WithLabelValues(String(), runtime.Version()).Set(1)
	return g
}

// TargetInfo is the metric target_info, by which OpenTelemetry names the process that other series
// are of: the labels are those of its traces' resource.
func TargetInfo(instance string) prometheus.Collector {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "target_info", Help: "1, with what traces of this gateway name it by: service.name, service.version and service.instance.id.",
	}, []string{"service_name", "service_version", "service_instance_id"})
	g.WithLabelValues("tandem", String(), instance).Set(1)
	return g
}
