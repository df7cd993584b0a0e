package envoy

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
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
	// Requests and Answers are how their bodies are shown to the picker.
	Requests, Answers string
	// Again says that requests which no picker has answered are sent through the filter again.
	Again bool
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
	return setup{Pickers: []address{addressOf(t, p.address)}, PickerTLS: true, HealthInterval: "1s",
		Requests: "FULL_DUPLEX_STREAMED", Answers: "FULL_DUPLEX_STREAMED"}
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

// plainBackend is Envoy as a gateway has it that sends requests to Tandem's HTTP port, and asks no picker.
func plainBackend(t *testing.T, p *picker) setup {
	t.Helper()
	return setup{Pool: []address{addressOf(t, p.http)}, Requests: "FULL_DUPLEX_STREAMED", Answers: "FULL_DUPLEX_STREAMED"}
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

// host is a picker as Envoy sees it.
type host struct {
	Address struct {
		Socket struct {
			Port int `json:"port_value"`
		} `json:"socket_address"`
	}
	Stats []struct {
		Name  string
		Value string
	}
	Health struct {
		Failed  bool `json:"failed_active_health_check"`
		Pending bool `json:"pending_active_hc"`
	} `json:"health_status"`
}

// pickers are those that Envoy asks.
func (e proxy) pickers() (pickers []host, err error) {
	var said struct {
		Clusters []struct {
			Name  string
			Hosts []host `json:"host_statuses"`
		} `json:"cluster_statuses"`
	}
	err = process.JSON(e.admin+"/clusters?format=json", &said)
	for _, cluster := range said.Clusters {
		if cluster.Name == "ext_proc" {
			pickers = append(pickers, cluster.Hosts...)
		}
	}
	return pickers, err
}

// active is how many requests a picker has from Envoy.
func (e proxy) active(t *testing.T, p *picker) (requests int) {
	t.Helper()
	pickers, err := e.pickers()
	for _, h := range pickers {
		for _, stat := range h.Stats {
			// None at all are left out.
			if strconv.Itoa(h.Address.Socket.Port) == process.Port(t, p.address) && stat.Name == "rq_active" && stat.Value != "" && err == nil {
				requests, err = strconv.Atoi(stat.Value)
			}
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return requests
}

// waitForPickers waits until Envoy takes so many pickers for healthy.
func (e proxy) waitForPickers(t *testing.T, want int) {
	t.Helper()
	process.WaitFor(t, nil, "Envoy to judge the pickers", process.ReadyWithin, func() error {
		pickers, err := e.pickers()
		if err != nil {
			return err
		}
		healthy := 0
		for _, h := range pickers {
			if !h.Health.Failed && !h.Health.Pending {
				healthy++
			}
		}
		if healthy != want {
			return fmt.Errorf("%d of %d pickers are healthy", healthy, want)
		}
		return nil
	})
}

// stat is a counter of Envoy's.
func (e proxy) stat(t *testing.T, name string) int {
	t.Helper()
	var said struct {
		Stats []struct {
			Name  string
			Value int
		}
	}
	if err := process.JSON(e.admin+"/stats?format=json&usedonly&filter=^"+name+"$", &said); err != nil {
		t.Fatal(err)
	}
	for _, s := range said.Stats {
		if s.Name == name {
			return s.Value
		}
	}
	return 0
}
