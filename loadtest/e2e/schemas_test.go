package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// What chart and kustomizations render, and the manifests of deploy/keda and deploy/gateway-api, have
// the fields that Kubernetes' own OpenAPI documents and the projects' definitions give these kinds,
// each of its type, and no others. Kubeconform says so without an API server or a network.
func TestSchemas(t *testing.T) {
	location := writeSchemas(t)
	t.Run("allow every manifest", func(t *testing.T) {
		printed, err := kubeconform(t, location, manifests(t))
		if err != nil || !strings.Contains(printed, "Invalid: 0, Errors: 0, Skipped: 0") {
			t.Errorf("%v\n%s", err, printed)
		}
		t.Log(strings.TrimSpace(printed))
	})
	t.Run("refuse mistakes", func(t *testing.T) { checkMistakes(t, location) })
}

// checkMistakes demands that a field whose name or type is wrong is refused, whichever project defines
// its kind, and so is a kind without a schema.
func checkMistakes(t *testing.T, location string) {
	mistakes := map[string]struct{ example, right, wrong, want string }{
		"field":         {"default", "\n  replicas: ", "\n  replica: ", "'replica' not allowed"},
		"type":          {"default", "\n  replicas: 2", "\n  replicas: two", "got string, want integer"},
		"inner-field":   {"default", "readOnlyRootFilesystem", "readonlyRootFilesystem", "'readonlyRootFilesystem' not allowed"},
		"metadata":      {"vllm-nixl", "kind: ScaledObject\nmetadata:", "kind: ScaledObject\nmetadata:\n  label: {}", "'label' not allowed"},
		"rules":         {"default", "\nrules:", "\nrule:", "'rule' not allowed"},
		"keda":          {"vllm-nixl", "  maxReplicaCount:", "  maxReplicas:", "'maxReplicas' not allowed"},
		"prometheus":    {"vllm-nixl", "  podMetricsEndpoints:", "  podMetricEndpoints:", "'podMetricEndpoints' not allowed"},
		"lws":           {"wide-ep", "    workerTemplate:", "    workersTemplate:", "'workersTemplate' not allowed"},
		"istio":         {"picker-istio", "  trafficPolicy:", "  trafficPolicies:", "'trafficPolicies' not allowed"},
		"inferencepool": {"picker-istio", "  endpointPickerRef:", "  extensionRef:", "'extensionRef' not allowed"},
		"gateway-api":   {"external-redis", "backendRefs:", "backendRef:", "'backendRef' not allowed"},
		"kind":          {"external-redis", "kind: HTTPRoute", "kind: HTTPRoutes", "could not find schema for HTTPRoutes"},
	}
	texts := map[string]string{}
	for name, m := range mistakes {
		text := rendered(t, m.example, "tandem")
		texts[name] = strings.Replace(text, m.right, m.wrong, 1)
		if texts[name] == text {
			t.Errorf("%s: %s has no %q", name, m.example, m.right)
		}
	}
	printed, err := kubeconform(t, location, texts)
	if err == nil {
		t.Error("kubeconform ends well")
	}
	for line := range strings.Lines(printed) {
		name, says, found := strings.Cut(line, ".yaml - ")
		name = filepath.Base(name)
		if found && !strings.Contains(says, mistakes[name].want) {
			t.Errorf("%s: want %q in %s", name, mistakes[name].want, says)
		}
		delete(mistakes, name)
	}
	for name := range mistakes {
		t.Errorf("%s: nothing is said of it in\n%s", name, printed)
	}
	t.Log(strings.TrimSpace(printed))
}

// manifests are all that deploy has for Kubernetes, rendered, by what renders it or its file.
func manifests(t *testing.T) map[string]string {
	t.Helper()
	root := process.Root(t)
	texts := map[string]string{}
	for _, name := range chartExamples(t) {
		texts["chart-"+name] = rendered(t, name, "tandem")
	}
	for _, dir := range []string{"deploy/kustomize", "deploy/kustomize/picker"} {
		texts[dir] = kustomization(t, filepath.Join(root, dir))
	}
	for _, pattern := range []string{"deploy/kustomize/victims/access.yaml", "deploy/keda/*.yaml", "deploy/gateway-api/*.yaml"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files (%v)", pattern, len(files), err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			texts[strings.TrimSuffix(strings.TrimPrefix(file, root+"/"), ".yaml")] = string(text)
		}
	}
	return texts
}

// kustomization is what the kustomization of a folder consists of.
func kustomization(t *testing.T, dir string) string {
	t.Helper()
	text, err := exec.Command(filepath.Join(process.Root(t), ".cache/e2e/kubectl"), "kustomize", dir).Output()
	if err != nil {
		t.Fatalf("kubectl kustomize %s: %v", dir, err)
	}
	return string(text)
}

// kubeconform reads manifests strictly by the schemas of a location, and returns what it printed: of
// each that is not as its schema says a line that begins with the file's name, NAME.yaml.
func kubeconform(t *testing.T, location string, manifests map[string]string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range manifests {
		if err := os.WriteFile(filepath.Join(dir, strings.ReplaceAll(name, "/", "-")+".yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	printed, err := exec.Command(filepath.Join(process.Root(t), ".cache/e2e/kubeconform"), "-strict", "-summary", "-schema-location", location, dir).CombinedOutput()
	return string(printed), err
}

// builtIn is the file of a location's directory with all types of Kubernetes itself, and objectMeta
// the type of every kind's metadata.
const (
	builtIn    = "kubernetes.json"
	objectMeta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
)

// typeOf refers to a type of Kubernetes itself.
func typeOf(name string) map[string]any {
	return map[string]any{"$ref": "../../" + builtIn + "#/components/schemas/" + name}
}

// writeSchemas writes a schema for each built-in kind and for those of definitions, and returns the
// location that kubeconform finds them by.
func writeSchemas(t *testing.T) (location string) {
	t.Helper()
	dir := t.TempDir()
	types := builtInTypes(t)
	for name, schema := range types {
		refuseUnknownFields(schema)
		kinds, _ := schema["x-kubernetes-group-version-kind"].([]any)
		if properties, _ := schema["properties"].(map[string]any); properties["metadata"] == nil {
			continue // options of calls, which every group has
		}
		for _, kind := range kinds {
			k := kind.(map[string]any)
			writeSchema(t, schemaFile(dir, k["group"].(string), k["version"].(string), k["kind"].(string)), typeOf(name))
		}
	}
	writeSchema(t, filepath.Join(dir, builtIn), map[string]any{"components": map[string]any{"schemas": types}})
	for _, file := range definitions {
		writeCustomSchemas(t, dir, filepath.Join(process.Root(t), ".cache/e2e", file))
	}
	return dir + "/{{.Group}}/{{.ResourceAPIVersion}}/{{.ResourceKind}}.json"
}

// builtInTypes are the types of Kubernetes' OpenAPI documents by their names.
func builtInTypes(t *testing.T) map[string]map[string]any {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(process.Root(t), ".cache/e2e/kubernetes-openapi/*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("Kubernetes' OpenAPI documents: %d files (%v)", len(files), err)
	}
	types := map[string]map[string]any{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		// One map for all: a type is the same in every document.
		document := struct {
			Components struct{ Schemas *map[string]map[string]any }
		}{}
		document.Components.Schemas = &types
		if err := json.Unmarshal(text, &document); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	return types
}

// writeCustomSchemas writes the schemas of a file of custom resource definitions.
func writeCustomSchemas(t *testing.T, dir, file string) {
	t.Helper()
	text, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	written := 0
	for documents := yaml.NewDecoder(text); ; {
		var crd struct {
			Spec struct {
				Group    string
				Names    struct{ Kind string }
				Versions []struct {
					Name   string
					Schema struct {
						OpenAPIV3Schema map[string]any `yaml:"openAPIV3Schema"`
					}
				}
			}
		}
		if documents.Decode(&crd) != nil {
			break
		}
		for _, version := range crd.Spec.Versions {
			schema := version.Schema.OpenAPIV3Schema
			properties, _ := schema["properties"].(map[string]any)
			if properties == nil {
				t.Fatalf("%s: %s %s has no fields", file, crd.Spec.Names.Kind, version.Name)
			}
			refuseUnknownFields(schema)
			// The API server knows these three, whatever the definition says of them.
			properties["apiVersion"], properties["kind"] = map[string]any{"type": "string"}, map[string]any{"type": "string"}
			properties["metadata"] = typeOf(objectMeta)
			writeSchema(t, schemaFile(dir, crd.Spec.Group, version.Name, crd.Spec.Names.Kind), schema)
			written++
		}
	}
	if written == 0 {
		t.Fatalf("%s defines no kind", file)
	}
}

// schemaFile is where kubeconform looks for a kind: it takes the version for the group that has none.
func schemaFile(dir, group, version, kind string) string {
	if group == "" {
		group = version
	}
	return filepath.Join(dir, group, version, strings.ToLower(kind)+".json")
}

func writeSchema(t *testing.T, file string, schema map[string]any) {
	t.Helper()
	text, err := json.Marshal(schema)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// refuseUnknownFields closes each object of an OpenAPI schema whose fields are listed, unless it says
// that it keeps others, and puts OpenAPI's nullable as JSON schema does. What allOf and its like add
// are conditions of fields that are listed beside them.
func refuseUnknownFields(schema map[string]any) {
	delete(schema, "description") // three quarters of the text, which is read once for each kind
	if is, _ := schema["nullable"].(bool); is {
		if of, has := schema["type"].(string); has {
			schema["type"] = []any{of, "null"}
		}
	}
	if properties, has := schema["properties"].(map[string]any); has {
		for _, property := range properties {
			refuseUnknownFields(property.(map[string]any))
		}
		keeps, _ := schema["x-kubernetes-preserve-unknown-fields"].(bool)
		if _, says := schema["additionalProperties"]; !says && !keeps {
			schema["additionalProperties"] = false
		}
	}
	for _, name := range []string{"items", "additionalProperties"} {
		if of, has := schema[name].(map[string]any); has {
			refuseUnknownFields(of)
		}
	}
}
