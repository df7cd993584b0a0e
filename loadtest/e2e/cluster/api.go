package cluster

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// Do asks the API server as its administrator. A body is sent as JSON, as a merge
// patch if the method is PATCH; the answer is read into answer if that is not nil.
func (c *Cluster) Do(method, path string, body, answer any) error {
	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		sent = bytes.NewReader(text)
	}
	req, err := http.NewRequest(method, c.URL+path, sent)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/strategic-merge-patch+json")
	}
	resp, err := c.client().Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return &refusal{resp.StatusCode, fmt.Sprintf("%s %s: %s: %s", method, path, resp.Status, text)}
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(text, answer)
}

// refusal is an answer of the API server that is an error.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

// isStale reports whether the object of a request is gone or has changed.
func isStale(err error) bool {
	var r *refusal
	return errors.As(err, &r) && (r.status == http.StatusNotFound || r.status == http.StatusConflict)
}

// client trusts the cluster's authority. Its connections end with its use: an API
// server that is killed must not be remembered.
func (c *Cluster) client() *http.Client {
	trusted := x509.NewCertPool()
	trusted.AddCert(c.Authority.cert)
	return &http.Client{
		Timeout:   30 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}, DisableKeepAlives: true},
	}
}

// Kubeconfig writes the file that lets the bearer of a token in, and returns its name.
func (c *Cluster) Kubeconfig(token string) (string, error) {
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: test}}]
clusters: [{name: test, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: test, user: {token: %q}}]
`, c.URL, c.Authority.File, token)
	name := sha256.Sum256([]byte(token))
	file := filepath.Join(c.dir, fmt.Sprintf("kubeconfig-%x", name[:8]))
	return file, os.WriteFile(file, []byte(text), 0o600)
}

// AdminKubeconfig is Kubeconfig of the administrator.
func (c *Cluster) AdminKubeconfig(t testing.TB) string {
	t.Helper()
	file, err := c.Kubeconfig(adminToken)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// Token returns a token of a service account, as a pod would have it.
func (c *Cluster) Token(namespace, account string) (string, error) {
	var answer struct {
		Status struct{ Token string }
	}
	request := map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": map[string]any{}}
	path := fmt.Sprintf("/api/v1/namespaces/%s/serviceaccounts/%s/token", namespace, account)
	err := c.Do("POST", path, request, &answer)
	return answer.Status.Token, err
}

// May reports whether a service account has a right, such as "list", "pods".
func (c *Cluster) May(t testing.TB, namespace, account, verb, resource string) bool {
	t.Helper()
	review := map[string]any{"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": map[string]any{
		"user":               "system:serviceaccount:" + namespace + ":" + account,
		"groups":             []string{"system:serviceaccounts", "system:authenticated"},
		"resourceAttributes": map[string]any{"namespace": namespace, "verb": verb, "resource": resource},
	}}
	var answer struct{ Status struct{ Allowed bool } }
	if err := c.Do("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review, &answer); err != nil {
		t.Fatal(err)
	}
	return answer.Status.Allowed
}

// Kubectl runs kubectl as the administrator, with the repository as its working
// directory, and returns what it printed.
func (c *Cluster) Kubectl(t testing.TB, args ...string) string {
	t.Helper()
	root := process.Root(t)
	cmd := exec.Command(filepath.Join(root, ".cache/e2e/kubectl"), append([]string{"--kubeconfig", c.AdminKubeconfig(t)}, args...)...)
	cmd.Dir = root
	printed, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %v: %v\n%s", args, err, printed)
	}
	return string(printed)
}

// Apply applies a manifest.
func (c *Cluster) Apply(t testing.TB, manifest string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Kubectl(t, "apply", "--server-side", "-f", file)
}
