package e2e

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v3"
)

// TestCompose loads deploy/compose.yaml with compose's own loader and starts what it
// describes as processes: see the comment at its top.
func TestCompose(t *testing.T) {
	project := loadCompose(t)
	for _, service := range project.Services {
		if service.Build != nil {
			if _, err := os.Stat(filepath.Join(service.Build.Context, service.Build.Dockerfile)); err != nil {
				t.Errorf("service %s is built from what is not there: %v", service.Name, err)
			}
		}
		for _, volume := range service.Volumes {
			if _, err := os.Stat(volume.Source); volume.Type == types.VolumeTypeBind && err != nil {
				t.Errorf("service %s mounts what is not there: %v", service.Name, err)
			}
		}
		for _, port := range service.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("service %s publishes port %s beyond this machine", service.Name, port.Published)
			}
		}
	}

	checkGrafana(t, project)

	// Where each name and port of the composed network is on this machine.
	j := startJaeger(t) // by the file that the service mounts
	places := []string{"http://jaeger:4318", j.otlp}
	r := &redisServer{addr: freeAddress(t)}
	r.restart(t, project.Services["redis"].Command[1:]...)
	places = append(places, "redis:6379", r.addr)
	f := fleet{model: "demo"}
	for i, name := range []string{"prefill-1", "prefill-2", "decode-1", "decode-2"} {
		addr := freeAddress(t)
		f.add(i, addr)
		places = append(places, name+":8000", addr)
		service := project.Services[name]
		p := start(t, name, "bin/tandem-lab", onThisMachine(service,
			"--listen=:8000", "--listen="+addr, "--advertise-host="+name, "--advertise-host=127.0.0.1")...)
		waitFor(t, p, "the health of "+name, readyWithin, answers("http://"+addr+"/health"))
	}
	gateways := []string{"tandem-1", "tandem-2"}
	var listens []string
	for _, name := range gateways {
		listen, admin := freeAddress(t), freeAddress(t)
		here := append(places, "--listen=:8080", "--listen="+listen, "--admin=:8081", "--admin="+admin)
		p := start(t, name, "bin/tandem", onThisMachine(project.Services[name], here...)...)
		waitFor(t, p, name+" to be ready", readyWithin, answers("http://"+admin+"/readyz"))
		listens, places = append(listens, listen), append(places, name+":8081", admin)
	}
	for i, listen := range listens {
		c := call{API: "chat", Model: f.model, Prompt: prompt("compose"+gateways[i], promptWords), MaxTokens: 20, Stream: true}
		got := doWithGo(t, "http://"+listen, c)
		if got.Error != nil {
			t.Fatalf("%s raised %+v", gateways[i], got.Error)
		}
		checkPair(t, got, f)
		checkTrace(t, j, answer{c, got})
	}
	waitFor(t, nil, "both gateways in Redis", readyWithin, func() error {
		known, err := r.ask("ZCARD", "tandem:{work}:replicas")
		if err == nil && known != "2" {
			err = fmt.Errorf("%s are there", known)
		}
		return err
	})
	scrapeComposed(t, project.Services["prometheus"], places)
}

// scrapeComposed starts the Prometheus of the composed network with its configuration, and waits
// until it has scraped every target and knows every rule.
func scrapeComposed(t *testing.T, service types.ServiceConfig, places []string) {
	t.Helper()
	if _, err := os.Stat("../../.cache/e2e/prometheus"); err != nil {
		t.Log("no Prometheus here: it comes from Debian")
		return
	}
	dir, address := t.TempDir(), freeAddress(t)
	for _, volume := range service.Volumes {
		places = append(places, volume.Target, volume.Source)
	}
	text, err := os.ReadFile("../../deploy/prometheus.yml")
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, []byte(strings.NewReplacer(places...).Replace(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	args := onThisMachine(service, "/etc/prometheus/prometheus.yml", config)
	p := start(t, "prometheus", ".cache/e2e/prometheus", append(args, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)...)
	waitFor(t, p, "Prometheus to scrape all", readyWithin, func() error {
		var targets struct {
			Data struct {
				ActiveTargets []struct{ ScrapeURL, Health, LastError string }
			}
		}
		if err := getJSON("http://"+address+"/api/v1/targets", &targets); err != nil {
			return err
		}
		if n := len(targets.Data.ActiveTargets); n != 6 {
			return fmt.Errorf("%d targets", n)
		}
		for _, target := range targets.Data.ActiveTargets {
			if target.Health != "up" {
				return fmt.Errorf("%s is %s: %s", target.ScrapeURL, target.Health, target.LastError)
			}
		}
		return nil
	})
	var rules struct {
		Data struct {
			Groups []struct{ Rules []any }
		}
	}
	if err := getJSON("http://"+address+"/api/v1/rules", &rules); err != nil || len(rules.Data.Groups) == 0 {
		t.Errorf("%d groups of rules (%v)", len(rules.Data.Groups), err)
	}
}

// checkGrafana holds the names in Grafana's files to the services and mounts of the composed
// network: nothing runs them here.
func checkGrafana(t *testing.T, project *types.Project) {
	t.Helper()
	var sources struct {
		Datasources []struct {
			UID, URL string
			JSONData struct {
				Exemplars []struct {
					Datasource string `yaml:"datasourceUid"`
				} `yaml:"exemplarTraceIdDestinations"`
			} `yaml:"jsonData"`
		}
	}
	var dashboards struct {
		Providers []struct{ Options struct{ Path string } }
	}
	readYAML(t, "../../deploy/grafana/datasources.yaml", &sources)
	readYAML(t, "../../deploy/grafana/dashboards.yaml", &dashboards)
	uids := make(map[string]bool)
	for _, source := range sources.Datasources {
		uids[source.UID] = true
		at, err := url.Parse(source.URL)
		if err != nil {
			t.Fatal(err)
		}
		serves := slices.ContainsFunc(project.Services[at.Hostname()].Ports, func(p types.ServicePortConfig) bool { return fmt.Sprint(p.Target) == at.Port() })
		if !serves {
			t.Errorf("no service is at %s", source.URL)
		}
	}
	for _, source := range sources.Datasources {
		for _, exemplar := range source.JSONData.Exemplars {
			if !uids[exemplar.Datasource] {
				t.Errorf("exemplars lead to the datasource %q, which is not there", exemplar.Datasource)
			}
		}
	}
	if len(uids) != 2 || len(dashboards.Providers) != 1 {
		t.Fatalf("%d datasources, %d providers of dashboards", len(uids), len(dashboards.Providers))
	}
	path := dashboards.Providers[0].Options.Path
	for _, volume := range project.Services["grafana"].Volumes {
		if found, _ := filepath.Glob(filepath.Join(volume.Source, "*.json")); volume.Target == path && len(found) == 5 {
			return
		}
	}
	t.Errorf("the dashboards are not mounted at %s", path)
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func loadCompose(t *testing.T) *types.Project {
	t.Helper()
	file, err := filepath.Abs("../../deploy/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	options, err := cli.NewProjectOptions([]string{file}, cli.WithWorkingDirectory(filepath.Dir(file)))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatalf("deploy/compose.yaml: %v", err)
	}
	return project
}

// onThisMachine is a service's command with places of the composed network replaced
// by places here; replacements are pairs of old and new.
func onThisMachine(service types.ServiceConfig, replacements ...string) []string {
	replacer := strings.NewReplacer(replacements...)
	var args []string
	for _, arg := range service.Command {
		args = append(args, replacer.Replace(arg))
	}
	return args
}
