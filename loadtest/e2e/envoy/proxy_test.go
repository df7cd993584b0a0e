package envoy

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// address of a server or a picker, as the configuration of Envoy has it.
type address struct{ Host, Port string }

func addressOf(t *testing.T, url string) address {
	t.Helper()
	host, port, err := net.SplitHostPort(strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	return address{host, port}
}

// setup is what envoy.yaml is filled with.
type setup struct {
	Port, AdminPort string
	Pickers         []address
	PickerTLS       bool
	FailOpen        bool
	// Answers is how their bodies are shown to the picker.
	Answers string
	// HealthInterval is how often Envoy asks a picker whether it is ready.
	HealthInterval string
	// PickerRetries is how often another picker is asked where one does not answer.
	PickerRetries int
	// Pool are the servers of which the picker chooses; nil: those that it names, whichever.
	Pool []address
	// Retries of a request that the server did not take.
	Retries int
}

// standalone is Envoy as llm-d's chart has it, but for a health check that looks more often.
func standalone(t *testing.T, p *picker) setup {
	t.Helper()
	return setup{Pickers: []address{addressOf(t, p.address)}, PickerTLS: true, HealthInterval: "1s", Answers: "FULL_DUPLEX_STREAMED"}
}

// ofPool is Envoy as gateways have it that know the pool's servers.
func ofPool(t *testing.T, p *picker, servers []*server) setup {
	t.Helper()
	s := standalone(t, p)
	for _, server := range servers {
		s.Pool = append(s.Pool, addressOf(t, server.url))
	}
	s.Retries = 2
	return s
}

// proxy is a running Envoy.
type proxy struct {
	url, admin string
}

// startProxy starts Envoy, and waits until it serves and every picker is healthy.
func startProxy(t *testing.T, s setup) proxy {
	t.Helper()
	listen, admin := process.FreeAddress(t), process.FreeAddress(t)
	s.Port, s.AdminPort = process.Port(t, listen), process.Port(t, admin)
	path := filepath.Join(t.TempDir(), "envoy.yaml")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := template.Must(template.ParseFiles("envoy.yaml")).Execute(file, s); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	p := process.Start(t, nil, "envoy", ".cache/e2e/envoy-server", "-c", path, "--log-level", "warning", "--concurrency", "2", "--disable-hot-restart")
	process.WaitFor(t, p, "Envoy", process.ReadyWithin, process.Answers("http://"+admin+"/ready"))
	e := proxy{url: "http://" + listen, admin: "http://" + admin}
	e.waitForPickers(t, len(s.Pickers))
	return e
}

// waitForPickers waits until Envoy takes so many pickers for healthy.
func (e proxy) waitForPickers(t *testing.T, want int) {
	t.Helper()
	process.WaitFor(t, nil, "Envoy to judge the pickers", process.ReadyWithin, func() error {
		var said struct {
			Clusters []struct {
				Name  string
				Hosts []struct {
					Health struct {
						Failed  bool `json:"failed_active_health_check"`
						Pending bool `json:"pending_active_hc"`
					} `json:"health_status"`
				} `json:"host_statuses"`
			} `json:"cluster_statuses"`
		}
		if err := process.JSON(e.admin+"/clusters?format=json", &said); err != nil {
			return err
		}
		healthy := 0
		for _, cluster := range said.Clusters {
			for _, host := range cluster.Hosts {
				if cluster.Name == "ext_proc" && !host.Health.Failed && !host.Health.Pending {
					healthy++
				}
			}
		}
		if healthy != want {
			return fmt.Errorf("%d of %d pickers are healthy", healthy, want)
		}
		return nil
	})
}
