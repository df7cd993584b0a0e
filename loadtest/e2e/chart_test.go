package e2e

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-gateway/tandem/loadtest/e2e/cluster"
	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// chartExamples are the values files of deploy/chart/examples by their names, "default" the chart's
// own values.
func chartExamples(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob("../../deploy/chart/examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("examples of the chart: %d files (%v)", len(files), err)
	}
	for _, file := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(file), ".yaml"))
	}
	return append(names, "default")
}

// helm runs helm on deploy/chart and returns what it printed. A name other than "default" adds the
// values of that example.
func helm(t *testing.T, example string, args ...string) (string, error) {
	t.Helper()
	if example != "default" {
		args = append(args, "--values", "deploy/chart/examples/"+example+".yaml")
	}
	root := process.Root(t)
	cmd := exec.Command(filepath.Join(root, ".cache/e2e/helm"), args...)
	cmd.Dir = root
	printed, err := cmd.CombinedOutput()
	return string(printed), err
}

// rendered is what an installation in a namespace consists of.
func rendered(t *testing.T, example, namespace string, args ...string) string {
	t.Helper()
	text, err := helm(t, example, append([]string{"template", "tandem", "deploy/chart", "--namespace", namespace}, args...)...)
	if err != nil {
		t.Fatalf("helm template of %s: %v\n%s", example, err, text)
	}
	return text
}

// Helm's linter finds nothing, in its strict form, with the values of any example.
func TestChart_Lints(t *testing.T) {
	for _, name := range chartExamples(t) {
		if printed, err := helm(t, name, "lint", "--strict", "deploy/chart"); err != nil || strings.Contains(printed, "[WARNING]") {
			t.Errorf("%s: %v\n%s", name, err, printed)
		}
	}
}

// made are the passwords that the chart draws anew where no Secret is there.
var made = regexp.MustCompile(`(password: |token: )[A-Za-z0-9]{40}\b|( on #)[0-9a-f]{64}\b`)

// Each example renders to the manifests of testdata/chart, which a person can read and dispute.
// UPDATE=1 writes them anew.
func TestChart_RendersAsWritten(t *testing.T) {
	for _, name := range chartExamples(t) {
		got := made.ReplaceAllString(rendered(t, name, "tandem"), "${1}${2}MADE")
		file := filepath.Join("testdata/chart", name+".yaml")
		if os.Getenv("UPDATE") != "" {
			if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s differs from %s:\n%s", name, file, firstDifference(string(want), got))
		}
	}
}

// firstDifference is the first line in which two texts differ, with its number.
func firstDifference(want, got string) string {
	wants, gots := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(wants), len(gots)) {
		if wants[i] != gots[i] {
			return "want " + wants[i] + "\ngot  " + gots[i]
		}
	}
	return "one has more lines than the other"
}

// Values that the chart does not know, or that cannot be, are refused by name.
func TestChart_RefusesWhatItDoesNotKnow(t *testing.T) {
	for set, want := range map[string]string{
		"replica=3":                                   "additional properties 'replica' not allowed",
		"replicas=0":                                  "/replicas",
		"pools.a.role=encode":                         "/pools/a/role",
		"pools.a.replicas=2":                          "missing property 'role'",
		"pools.A.role=decode":                         "'A' does not match pattern",
		"pools.a.role=decode,pools.a.engine=tgi":      "/pools/a/engine",
		"pools.a.role=decode,pools.a.scale.min=1":     "missing property 'max'",
		"picker.provider=nginx":                       "/picker/provider",
		"picker.pool.targetPorts={1,2,3,4,5,6,7,8,9}": "/picker/pool/targetPorts",
		"image.digest=latest":                         "/image/digest",
		"pools.a.role=decode,pools.a.engine=sglang,pools.a.nodes=2":                                "pools.a: nodes above 1 are written for vllm",
		"pools.a.role=decode,pools.a.gpus=6,pools.a.ranks=4":                                       "pools.a: 6 GPUs are no multiple of 4 ranks",
		"pools.tandem.role=decode":                                                                 "pools.tandem: that is the name of the release's own Deployment",
		"pools.tandem-redis.role=decode":                                                           "pools.tandem-redis: that is the name of the release's own Deployment",
		"keda.enabled=true,pools.a.role=both,pools.a.scale.min=1,pools.a.scale.max=2":              "pools.a: KEDA is told how many prefill or decode servers are wanted",
		"picker.enabled=true":                                                                      "picker.pool.selector names no pods",
		"gateway.create=true":                                                                      "gateway.className names no class",
		"picker.enabled=true,picker.pool.selector.app=a,picker.leaderOnly=true,redis.deploy=false": "picker.leaderOnly needs a redis",
	} {
		text, err := helm(t, "default", "template", "tandem", "deploy/chart", "--set", set)
		if err == nil || !strings.Contains(text, want) {
			t.Errorf("--set %s (%v): want %q in\n%s", set, err, want, text)
		}
	}
}

// GPUs beyond a pod's ranks compute each layer together: no engine does so by itself.
func TestChart_GPUsOfAPodComputeTogether(t *testing.T) {
	for set, want := range map[string][]string{
		"gpus=1":                       {"!parallel-size", "!tp-size", "!tp_size"},
		"gpus=0":                       {"!parallel-size"},
		"gpus=4":                       {"--tensor-parallel-size=4", "!--data-parallel-size"},
		"gpus=8,ranks=4":               {"--tensor-parallel-size=2", "--data-parallel-size=4"},
		"gpus=4,ranks=4":               {"!--tensor-parallel-size", "--data-parallel-size=4"},
		"gpus=8,ranks=4,nodes=2":       {"--tensor-parallel-size=2 \\\n", "--data-parallel-size=8"},
		"gpus=4,engine=sglang":         {"--tp-size=4", "!--dp-size"},
		"gpus=8,ranks=4,engine=sglang": {"--tp-size=8", "--dp-size=4"},
		"gpus=4,engine=trtllm":         {"--tp_size=4"},
		"gpus=2,args[0]=--tensor-parallel-size=1":                {"!--tensor-parallel-size=2", "--tensor-parallel-size=1"},
		"gpus=4,args[0]=--pipeline-parallel-size=4":              {"!--tensor-parallel-size"},
		"gpus=4,args[0]=--pp-size=4,engine=sglang":               {"!--tp-size"},
		"gpus=4,args[0]=--pp_size=4,engine=trtllm":               {"!--tp_size"},
		"gpus=4,args[0]=--max-model-len=8192,args[1]=--dp-other": {"--tensor-parallel-size=4"},
	} {
		text := rendered(t, "default", "tandem", "--set", "pools.a.role=decode,pools.a."+strings.ReplaceAll(set, ",", ",pools.a."))
		for _, part := range want {
			if part, not := strings.CutPrefix(part, "!"); strings.Contains(text, part) == not {
				t.Errorf("--set %s: %q is there: %v\n%s", set, part, not, text)
			}
		}
	}
}

// KEDA asks for a pool by the model's name for clients, which is the first that its engines are given.
func TestChart_ScalesModelsByTheirNameForClients(t *testing.T) {
	for args, want := range map[string]string{
		"":                              "Qwen/Qwen3-0.6B",
		"--served-model-name=qwen":      "qwen",
		"--served-model-name,qwen,also": "qwen",
		"--max-model-len=8192,--served_model_name=qwen,--dtype=auto": "qwen",
	} {
		text := rendered(t, "default", "tandem", "--set", "keda.enabled=true,pools.a.role=decode,pools.a.scale.min=1,pools.a.scale.max=2,pools.a.args={"+args+"}")
		if !strings.Contains(text, "\n        model: \""+want+"\"\n        role: decode\n") {
			t.Errorf("args %s: no model %s in\n%s", args, want, text)
		}
	}
}

// A variable of a pool stands in place of the chart's own: an API server takes no two of one name.
func TestChart_VariablesOfAPoolCount(t *testing.T) {
	for _, engine := range []string{"vllm", "sglang", "trtllm"} {
		set := "pools.a.role=decode,pools.a.engine=" + engine
		own := regexp.MustCompile(`- \{?name: ([A-Z_]+)\b`).FindAllStringSubmatch(rendered(t, "default", "tandem", "--set", set), -1)
		if len(own) == 0 {
			t.Fatalf("%s has no variables", engine)
		}
		for _, name := range own {
			text := rendered(t, "default", "tandem", "--set", set+",pools.a.env[0].name="+name[1]+",pools.a.env[0].value=mine")
			if strings.Count(text, "name: "+name[1]+"\n")+strings.Count(text, "name: "+name[1]+",") != 1 || !strings.Contains(text, "name: "+name[1]+"\n              value: mine\n") {
				t.Errorf("%s: %s is not what the pool says:\n%s", engine, name[1], text)
			}
		}
	}
}

// The gateway's program takes every flag that the chart gives it.
func TestChart_GivesFlagsThatThereAre(t *testing.T) {
	for _, name := range chartExamples(t) {
		args := gatewayArgs(t, rendered(t, name, "tandem", "--set", "picker.fallbacks=2,picker.leaderOnly=true,redis.cluster=true,keysSecret=k,picker.plain=true,servers.services=a=b,servers.namespace=n,servers.connector=nixl,engines.trtllm.keySecret=k"))
		printed, err := exec.Command("../../bin/tandem", append(args, "--help")...).CombinedOutput()
		if len(args) < 8 || err != nil {
			t.Errorf("%s: tandem %s: %v\n%s", name, strings.Join(args, " "), err, printed)
		}
	}
}

// Files that settings name, such as the key of engines, can be mounted beside the chart's own.
func TestChart_MountsFilesOfSettings(t *testing.T) {
	const set = "extraArgs={--engine-key-file=/etc/engines/key},extraVolumes[0].name=engines,extraVolumes[0].secret.secretName=engines," +
		"extraVolumeMounts[0].name=engines,extraVolumeMounts[0].mountPath=/etc/engines"
	for _, more := range []string{"config.max-wait=30s", "admin.token.enabled=false,redis.deploy=false"} {
		pod := podTemplate(t, rendered(t, "default", "tandem", "--set", set, "--set", more), "tandem")
		_, mounts, found := strings.Cut(pod, "\n          volumeMounts:\n")
		mounts, volumes, also := strings.Cut(mounts, "\n      volumes:\n")
		if !found || !also || !strings.Contains(mounts, "- mountPath: /etc/engines\n              name: engines") || !strings.Contains(volumes, "- name: engines\n          secret:\n            secretName: engines") {
			t.Errorf("--set %s: the pods do not have the file:\n%s", more, pod)
		}
	}
}

// With a Secret of the key of hand-offs the gateway signs by it, and TensorRT-LLM's servers of pairs get it in the file
// that they read, of what the chart has written there before.
func TestChart_HandoffsOfTensorRTAreSigned(t *testing.T) {
	text := rendered(t, "trtllm", "tandem", "--set", "engines.trtllm.keySecret=handoffs,pools.whole.role=both")
	if args := gatewayArgs(t, text); !slices.Contains(args, "--trtllm-key-file=/etc/tandem/trtllm/key") {
		t.Errorf("the gateway has no key: %v", args)
	}
	for name, secrets := range map[string]int{"tandem": 1, "trtllm-context": 1, "trtllm-generation": 1, "whole": 0} {
		if pod := podTemplate(t, text, name); strings.Count(pod, "secretName: handoffs") != secrets {
			t.Errorf("the pods of %s have the Secret %d times:\n%s", name, secrets, pod)
		}
	}
	var pod struct {
		Spec struct {
			Containers []struct{ Command, Args []string }
		}
	}
	if err := yaml.Unmarshal([]byte(podTemplate(t, text, "trtllm-generation")), &pod); err != nil || len(pod.Spec.Containers) != 1 {
		t.Fatalf("%d containers (%v)", len(pod.Spec.Containers), err)
	}
	dir := t.TempDir()
	for file, content := range map[string]string{"config.yaml": "backend: pytorch\n", "key": "a+/=_-9\n", "trtllm-serve": "#!/bin/sh\necho \"$@\"\n"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	command := slices.Concat(pod.Spec.Containers[0].Command, pod.Spec.Containers[0].Args)
	for i := range command {
		command[i] = strings.NewReplacer("/etc/trtllm-key/", dir+"/", "/etc/trtllm/", dir+"/", "/dev/shm/config.yaml", dir+"/all.yaml").Replace(command[i])
	}
	server := exec.Command(command[0], command[1:]...)
	server.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	if printed, err := server.CombinedOutput(); err != nil || !strings.HasPrefix(string(printed), "serve ") || !strings.Contains(string(printed), "--extra_llm_api_options="+dir+"/all.yaml") {
		t.Errorf("the server is started by %s (%v)", printed, err)
	}
	content, err := os.ReadFile(filepath.Join(dir, "all.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var settings map[string]string
	if err := yaml.Unmarshal(content, &settings); err != nil || settings["internal_request_auth_key"] != "a+/=_-9" || settings["backend"] != "pytorch" {
		t.Errorf("the server reads %s (%v)", content, err)
	}
}

// Pods have the priority class that is set: engines each their pool's, gateways and the Redis that of the release.
func TestChart_PodsHaveTheirPriority(t *testing.T) {
	const set = "priorityClassName=gateways,poolDefaults.priorityClassName=engines,pools.a.role=decode,pools.b.role=prefill,pools.b.priorityClassName=batch"
	text := rendered(t, "default", "tandem", "--set", set)
	for name, want := range map[string]string{"tandem": "gateways", "tandem-redis": "gateways", "a": "engines", "b": "batch"} {
		if pod := podTemplate(t, text, name); !strings.Contains(pod, "\n      priorityClassName: "+want+"\n") {
			t.Errorf("%s is not of class %s:\n%s", name, want, pod)
		}
	}
}

// A port for clients that the world reaches does not open the picker's, which asks for no key.
func TestChart_OpensNoPickerToTheWorld(t *testing.T) {
	for _, c := range []struct {
		set           string
		clients, pick []string // ports by their names, of the Services tandem and tandem-picker
	}{
		{"service.type=ClusterIP", []string{"http", "picker"}, nil},
		{"service.type=LoadBalancer", []string{"http"}, []string{"picker"}},
		{"service.type=NodePort,picker.http=false", nil, []string{"picker"}},
	} {
		text := rendered(t, "picker-istio", "tandem", "--set", "picker.http=true", "--set", c.set)
		ports := map[string][]string{}
		for manifest := range strings.SplitSeq(text, "\n---\n") {
			var service struct {
				Kind     string
				Metadata struct{ Name string }
				Spec     struct {
					Type  string
					Host  string
					Ports []struct{ Name string }
					Ref   struct{ Name string } `yaml:"endpointPickerRef"`
				}
			}
			if err := yaml.Unmarshal([]byte(manifest), &service); err != nil {
				t.Fatal(err)
			}
			picker := "tandem"
			if c.pick != nil {
				picker = "tandem-picker"
			}
			switch service.Kind {
			case "Service":
				for _, port := range service.Spec.Ports {
					ports[service.Metadata.Name] = append(ports[service.Metadata.Name], port.Name)
				}
				if service.Metadata.Name == "tandem-picker" && service.Spec.Type != "" {
					t.Errorf("%s: the picker's Service is a %s", c.set, service.Spec.Type)
				}
			case "InferencePool":
				if service.Spec.Ref.Name != picker {
					t.Errorf("%s: the pool names %s", c.set, service.Spec.Ref.Name)
				}
			case "DestinationRule":
				if service.Spec.Host != picker+".tandem.svc.cluster.local" {
					t.Errorf("%s: the rule is for %s", c.set, service.Spec.Host)
				}
			}
		}
		if !slices.Equal(ports["tandem"], c.clients) || !slices.Equal(ports["tandem-picker"], c.pick) {
			t.Errorf("%s: ports %v", c.set, ports)
		}
	}
}

// Where one replica alone is ready, an old one may leave before a new one is: else a rollout and the
// eviction of that one would wait for ever.
func TestChart_LeaderOnlyLetsTheLeaderLeave(t *testing.T) {
	const set = "picker.enabled=true,picker.pool.selector.app=vllm,picker.leaderOnly="
	for on, want := range map[string][]string{
		"true":  {"- --picker-leader-only\n", "rollingUpdate: {maxSurge: 1, maxUnavailable: 100%}", "\n  maxUnavailable: 100%\n"},
		"false": {"rollingUpdate: {maxSurge: 1, maxUnavailable: 0}", "\n  maxUnavailable: 1\n"},
	} {
		text := rendered(t, "default", "tandem", "--set", set+on)
		for _, line := range want {
			if !strings.Contains(text, line) {
				t.Errorf("leaderOnly=%s: no %q in\n%s", on, line, text)
			}
		}
		if has := strings.Contains(text, "--picker-leader-only"); has != (on == "true") {
			t.Errorf("leaderOnly=%s: the flag is there: %v", on, has)
		}
	}
}

// podTemplate is the pod template of a Deployment, by its name.
func podTemplate(t *testing.T, manifests, name string) string {
	t.Helper()
	for manifest := range strings.SplitSeq(manifests, "\n---\n") {
		_, template, _ := strings.Cut(manifest, "\n  template:\n")
		if strings.Contains(manifest, "kind: Deployment\nmetadata:\n  name: "+name+"\n") && template != "" {
			return template
		}
	}
	t.Fatalf("no Deployment %s in\n%s", name, manifests)
	return ""
}

// An upgrade replaces the pods of what they read only when they start, and no pod for what is read again
// while it runs: the servers of the configuration. The passwords that the chart draws anew where it sees no
// cluster replace none either.
func TestChart_PodsAreReplacedForWhatTheyReadAtTheirStart(t *testing.T) {
	const before = "config.max-wait=30s,config.prefill={http://a:8000},config.decode={http://b:8000},config.both={http://c:8000}"
	for _, c := range []struct {
		deployment, set string
		replaced        bool
	}{
		{"tandem", "config.max-wait=60s", true},
		{"tandem", "config.max-waiting=7", true},
		{"tandem", "config.prefill={http://a:8000,http://d:8000}", false},
		{"tandem", "config.decode={http://d:8000}", false},
		{"tandem", "config.both={http://d:8000}", false},
		{"tandem", "replicas=3", false},
		{"tandem-redis", "redis.prefix=fleet:", true},
		{"tandem-redis", "redis.user=other", true},
		{"tandem-redis", "config.max-wait=60s", false},
	} {
		old := podTemplate(t, rendered(t, "default", "tandem", "--set", before), c.deployment)
		next := podTemplate(t, rendered(t, "default", "tandem", "--set", before, "--set", c.set), c.deployment)
		if replaced := old != next; replaced != c.replaced {
			t.Errorf("--set %s replaces pods of %s: %v, want %v", c.set, c.deployment, replaced, c.replaced)
		}
	}
	text := rendered(t, "default", "tandem", "--set", "config.max-wait=60s,podAnnotations.team=a")
	if pod := podTemplate(t, text, "tandem"); !strings.Contains(pod, "        team: a\n") || !strings.Contains(pod, "        checksum/config: ") {
		t.Errorf("the pods do not have both the annotations that are set and the checksum:\n%s", pod)
	}
}

// workloads are what Deployments and LeaderWorkerSets say of their pods and how many there are, by kind and name.
func workloads(t *testing.T, manifests string) map[string]any {
	t.Helper()
	all := make(map[string]any)
	for decoder := yaml.NewDecoder(strings.NewReader(manifests)); ; {
		var manifest struct {
			Kind     string
			Metadata struct{ Name string }
			Spec     any
		}
		err := decoder.Decode(&manifest)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if manifest.Kind == "Deployment" || manifest.Kind == "LeaderWorkerSet" {
			all[manifest.Kind+" "+manifest.Metadata.Name] = manifest.Spec
		}
	}
}

// A new version of the chart replaces by itself no pod: an engine loads its weights for minutes, and loses its KV.
func TestChart_AVersionReplacesNoPod(t *testing.T) {
	chart := filepath.Join(t.TempDir(), "chart")
	if err := os.CopyFS(chart, os.DirFS(filepath.Join(process.Root(t), "deploy/chart"))); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(chart, "Chart.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	next := regexp.MustCompile(`(?m)^version: .*`).ReplaceAll(text, []byte("version: 99.0.0"))
	if err := os.WriteFile(file, next, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"vllm-nixl", "wide-ep"} {
		old := workloads(t, rendered(t, name, "tandem"))
		printed, err := helm(t, name, "template", "tandem", chart, "--namespace", "tandem")
		if err != nil || !strings.Contains(printed, "tandem-99.0.0") {
			t.Fatalf("the chart of another version: %v\n%s", err, printed)
		}
		for workload, spec := range workloads(t, printed) {
			if !reflect.DeepEqual(old[workload], spec) {
				t.Errorf("%s: a new version of the chart replaces the pods of %s", name, workload)
			}
		}
	}
}

// Engines of TensorRT-LLM read a file when they start, whose content is the chart's: another one replaces them.
func TestChart_EnginesAreReplacedForTheirFile(t *testing.T) {
	checksum := regexp.MustCompile(`\n        checksum/config: [0-9a-f]{64}\n`)
	pod := func(role string) string {
		text := rendered(t, "default", "tandem", "--set", "pools.a.engine=trtllm,pools.a.annotations.team=b,pools.a.role="+role)
		return podTemplate(t, text, "a")
	}
	both, decode := pod("both"), pod("decode")
	if sum := checksum.FindString(both); sum == "" || sum == checksum.FindString(decode) || !strings.Contains(both, "\n        team: b\n") {
		t.Errorf("pods do not have the checksum of their file:\n%s\n%s", both, decode)
	}
}

// gatewayArgs are the arguments of the gateway's container.
func gatewayArgs(t *testing.T, manifests string) (args []string) {
	t.Helper()
	_, list, found := strings.Cut(manifests, "            - serve\n")
	if !found {
		t.Fatalf("no gateway in\n%s", manifests)
	}
	args = []string{"serve"}
	for line := range strings.Lines(list) {
		arg, is := strings.CutPrefix(strings.TrimRight(line, "\n"), "            - ")
		if !is {
			break
		}
		args = append(args, strings.Trim(arg, `"`))
	}
	return args
}

// The Redis of the chart lets its user do what docs/redis.md lists, and nothing else.
func TestChart_RedisUserMayDoWhatIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	rights := regexp.MustCompile(`(?m)^ *user tandem on [>#]\S+ (.*)$`)
	want := rights.FindSubmatch(page)
	got := rights.FindStringSubmatch(rendered(t, "default", "tandem"))
	if want == nil || got == nil || got[1] != string(want[1]) {
		t.Errorf("the chart's user: %q\nthe page's: %q", got, want)
	}
	if !strings.Contains(rendered(t, "default", "tandem"), "    user default off\n") {
		t.Error("the Redis lets clients in that show no password")
	}
}

// A Redis takes the users of the chart's Secret: the gateway's password opens it for what the gateway
// does, within the prefix alone, and nobody else is let in.
func TestChart_RedisLetsTheGatewayInAlone(t *testing.T) {
	manifests := rendered(t, "default", "tandem", "--set", "redis.prefix=fleet:")
	password := regexp.MustCompile(`(?m)^  password: (\S+)$`).FindStringSubmatch(manifests)
	users := regexp.MustCompile(`(?m)^    (user .*)$`).FindAllStringSubmatch(manifests, -1)
	if password == nil || len(users) != 2 {
		t.Fatalf("password %q, users %q", password, users)
	}
	file := filepath.Join(t.TempDir(), "users.acl")
	if err := os.WriteFile(file, []byte(users[0][1]+"\n"+users[1][1]+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	p := process.Start(t, nil, "redis", "/usr/bin/redis-server", "--port", portOf(t, address), "--save", "", "--aclfile", file)
	say := func(lines string) string {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err.Error()
		}
		defer conn.Close()
		if _, err := conn.Write([]byte(lines + "QUIT\r\n")); err != nil {
			return err.Error()
		}
		answer, _ := io.ReadAll(conn)
		return string(answer)
	}
	auth := "AUTH tandem " + password[1] + "\r\n"
	waitFor(t, p, "the Redis", readyWithin, func() error {
		if got := say(auth + "PING\r\n"); !strings.HasPrefix(got, "+OK\r\n+PONG") {
			return errors.New(got)
		}
		return nil
	})
	for lines, want := range map[string]string{
		"PING\r\n": "-NOAUTH", "AUTH tandem wrong\r\n": "-WRONGPASS", auth + "SET fleet:a 1\r\n": "+OK\r\n+OK",
		auth + "SET tandem:a 1\r\n": "+OK\r\n-NOPERM", auth + "FLUSHALL\r\n": "+OK\r\n-NOPERM", auth + "PUBLISH fleet:c x\r\n": "+OK\r\n:0",
	} {
		if got := say(lines); !strings.HasPrefix(got, want) {
			t.Errorf("%q is answered %q, want %q", strings.ReplaceAll(lines, password[1], "PASSWORD"), got, want)
		}
	}
}

// definitions are the kinds that deploy has beside Kubernetes' own, as their projects publish
// them.
var definitions = []string{
	"gateway-api-crds/gateway.networking.k8s.io_httproutes.yaml", "gateway-api-crds/gateway.networking.k8s.io_gateways.yaml",
	"inference-crds/inference.networking.k8s.io_inferencepools.yaml",
	"keda-crds/keda.sh_scaledobjects.yaml", "keda-crds/keda.sh_triggerauthentications.yaml",
	"lws-crds/leaderworkerset.x-k8s.io_leaderworkersets.yaml",
	"istio-crds/customresourcedefinitions.gen.yaml",
	"monitoring-crds/monitoring.coreos.com_servicemonitors.yaml", "monitoring-crds/monitoring.coreos.com_podmonitors.yaml",
	"monitoring-crds/monitoring.coreos.com_prometheusrules.yaml",
}

// An API server with the projects' own definitions takes every example, no field of which it does not
// know, in namespaces of the restricted standard.
func TestChart_IsTaken(t *testing.T) {
	c := cluster.Start(t)
	for _, file := range definitions {
		c.Kubectl(t, "apply", "--server-side", "-f", ".cache/e2e/"+file)
	}
	c.Kubectl(t, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	for _, name := range chartExamples(t) {
		t.Run(name, func(t *testing.T) {
			namespace := "of-" + name
			c.Kubectl(t, "create", "namespace", namespace)
			c.Kubectl(t, "label", "namespace", namespace, "pod-security.kubernetes.io/warn=restricted")
			file := filepath.Join(t.TempDir(), "rendered.yaml")
			if err := os.WriteFile(file, []byte(rendered(t, name, namespace)), 0o600); err != nil {
				t.Fatal(err)
			}
			printed := c.Kubectl(t, "apply", "-n", namespace, "--server-side", "--validate=strict", "-f", file)
			if strings.Contains(printed, "Warning") {
				t.Errorf("the API server warns:\n%s", printed)
			}
			checkChartRights(t, c, namespace)
		})
	}
	t.Run("the kustomization says the same", func(t *testing.T) { compareWithKustomize(t, c) })
}

// checkChartRights demands that the gateway of a namespace may look at its servers and at nodes, also
// where others are installed in the cluster, and may change nothing.
func checkChartRights(t *testing.T, c *cluster.Cluster, namespace string) {
	t.Helper()
	for _, right := range []struct {
		verb, resource string
		want           bool
	}{
		{"watch", "pods", true}, {"list", "nodes", true}, {"patch", "pods", false}, {"delete", "pods", false},
		{"get", "secrets", false}, {"get", "configmaps", false},
	} {
		if may := c.May(t, namespace, "tandem", right.verb, right.resource); may != right.want {
			t.Errorf("the gateway may %s %s: %v", right.verb, right.resource, may)
		}
	}
}

// compareWithKustomize applies deploy/kustomize and the chart with the values that make it the same,
// and demands that the API server keeps the same of both: neither falls behind the other.
func compareWithKustomize(t *testing.T, c *cluster.Cluster) {
	c.Kubectl(t, "apply", "--server-side", "--validate=strict", "-k", "deploy/kustomize")
	c.Kubectl(t, "create", "namespace", "chart")
	file := filepath.Join(t.TempDir(), "rendered.yaml")
	manifests := rendered(t, "vllm-nixl", "chart", "--set", "admin.token.enabled=false,keda.enabled=false,monitor.enabled=false")
	if err := os.WriteFile(file, []byte(manifests), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Kubectl(t, "apply", "-n", "chart", "--server-side", "--validate=strict", "-f", file)
	for _, path := range []string{
		"apis/apps/v1/%s/deployments/tandem", "apis/policy/v1/%s/poddisruptionbudgets/tandem",
		"api/v1/%s/services/tandem", "api/v1/%s/services/tandem-admin",
		"apis/rbac.authorization.k8s.io/v1/%s/roles/tandem",
		"apis/apps/v1/%s/deployments/vllm-prefill", "apis/apps/v1/%s/deployments/vllm-decode", "apis/policy/v1/%s/poddisruptionbudgets/vllm-decode",
	} {
		var objects []map[string]any
		for _, namespace := range []string{"tandem", "chart"} {
			var object map[string]any
			if err := c.Do("GET", "/"+strings.Replace(path, "%s", "namespaces/"+namespace, 1), nil, &object); err != nil {
				t.Fatal(err)
			}
			objects = append(objects, map[string]any{"spec": withoutNature(object["spec"]), "rules": object["rules"]})
		}
		if !reflect.DeepEqual(objects[0], objects[1]) {
			ours, _ := json.MarshalIndent(objects[0], "", " ")
			chart, _ := json.MarshalIndent(objects[1], "", " ")
			t.Errorf("%s: kustomize and chart differ:\n%s", path, firstDifference(string(ours), string(chart)))
		}
	}
}

// onlyChart are labels and arguments that the chart has by its nature: of releases, and of the Redis
// user that it makes.
var onlyChart = []string{"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart", "tandem/pool", "tandem/engine"}

// withoutNature is a value of a manifest without what onlyChart names, cluster addresses, and the
// mounted password.
func withoutNature(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for _, name := range append(slices.Clone(onlyChart), "clusterIP", "clusterIPs", "volumes", "volumeMounts") {
			if name == "volumes" || name == "volumeMounts" {
				if holds, _ := json.Marshal(v[name]); !strings.Contains(string(holds), `"redis"`) {
					continue
				}
			}
			delete(v, name)
		}
		for name := range v {
			v[name] = withoutNature(v[name])
		}
		return v
	case []any:
		var kept []any
		for _, item := range v {
			if arg, is := item.(string); is && strings.HasPrefix(arg, "--redis") {
				continue
			}
			kept = append(kept, withoutNature(item))
		}
		return kept
	default:
		return v
	}
}
