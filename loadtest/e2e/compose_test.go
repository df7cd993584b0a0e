package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
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

	// Where each name and port of the composed network is on this machine.
	j := startJaeger(t)
	places := []string{"http://jaeger:4318", j.otlp}
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
	listen, admin := freeAddress(t), freeAddress(t)
	places = append(places, "--listen=:8080", "--listen="+listen, "--admin=:8081", "--admin="+admin)
	p := start(t, "tandem", "bin/tandem", onThisMachine(project.Services["tandem"], places...)...)
	waitFor(t, p, "the gateway to be ready", readyWithin, answers("http://"+admin+"/readyz"))

	c := call{API: "chat", Model: f.model, Prompt: prompt("compose", promptWords), MaxTokens: 20, Stream: true}
	got := doWithGo(t, "http://"+listen, c)
	if got.Error != nil {
		t.Fatalf("raised %+v", got.Error)
	}
	checkPair(t, got, f)
	checkTrace(t, j, answer{c, got})
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
