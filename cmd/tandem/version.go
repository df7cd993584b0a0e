package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
)

// release is the version that a build without the repository was given:
// -ldflags "-X main.release=v1.2.3".
var release string

// version is the release, or else what the Go toolchain knows of the build.
func version() string {
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

// buildInfo is 1, with the build as labels.
func buildInfo() prometheus.Collector {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "tandem_build_info", Help: "1, with the version of this build and of the Go that built it.",
	}, []string{"version", "goversion"})
	g.WithLabelValues(version(), runtime.Version()).Set(1)
	return g
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "tandem", version())
			return err
		},
	}
}
