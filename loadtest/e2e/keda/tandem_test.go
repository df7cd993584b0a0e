package keda

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const root = "../../.."

// scaler is a running `tandem scaler`: what a gateway says to KEDA, with the numbers
// of the test.
type scaler struct {
	grpc, admin string // addresses
	args        []string
	say         io.WriteCloser
}

func startScaler(t *testing.T) *scaler {
	t.Helper()
	s := &scaler{grpc: freeAddress(t), admin: freeAddress(t)}
	s.start(t)
	return s
}

// start starts it, at the same addresses if it ran before.
func (s *scaler) start(t *testing.T) (stop func()) {
	t.Helper()
	cmd := exec.Command(filepath.Join(root, "bin/tandem"), append([]string{"scaler", "--listen", s.grpc, "--admin", s.admin}, s.args...)...)
	cmd.Stderr = os.Stderr
	var err error
	if s.say, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stop = run(t, cmd)
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil { // says where it listens
		t.Fatalf("tandem scaler: %v", err)
	}
	return stop
}

// wants makes a line known.
func (s *scaler) wants(t *testing.T, line string) {
	t.Helper()
	if _, err := fmt.Fprintln(s.say, line); err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(line)
	url := fmt.Sprintf("http://%s/autoscale/v1/pool?model=%s&role=%s", s.admin, fields[0], fields[1])
	want := fmt.Sprintf(`"replicas":%s,`, fields[2])
	eventually(t, "the scaler to know", func() error {
		text, err := get(url)
		if fields[2] == "unknown" && err != nil {
			return nil
		}
		if err == nil && !strings.Contains(text, want) {
			err = fmt.Errorf("it says %s", text)
		}
		return err
	})
}

// startPrometheus starts Debian's Prometheus, which scrapes a scaler every second.
func startPrometheus(t *testing.T, s *scaler) (address string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(root, ".cache/e2e/prometheus")); err != nil {
		t.Skip("no Prometheus here: it comes from Debian")
	}
	address = freeAddress(t)
	dir := t.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: tandem\n  static_configs: [{targets: [%q]}]\n", s.admin)
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, exec.Command(filepath.Join(root, ".cache/e2e/prometheus"), "--config.file", filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", address, "--log.level", "error"))
	eventually(t, "Prometheus", func() error {
		_, err := get("http://" + address + "/-/ready")
		return err
	})
	return address
}

// run starts a program that ends with the test, or with stop.
func run(t *testing.T, cmd *exec.Cmd) (stop func()) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v (`make e2e` builds what the tests need)", err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // fails if it has ended
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			t.Errorf("%s ignored SIGTERM", cmd.Path)
			_ = cmd.Process.Kill()
			<-ended
		}
	}
	t.Cleanup(stop)
	return stop
}

func get(url string) (string, error) {
	res, err := (&http.Client{Timeout: time.Minute}).Get(url)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, text)
	}
	return string(text), err
}

func freeAddress(t *testing.T) string {
	t.Helper()
	for tries := 0; ; tries++ {
		// Below the ports of outgoing connections, one of which could take it before it is
		// listened on.
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(10000+rand.IntN(22000))))
		if err == nil {
			defer listener.Close()
			return listener.Addr().String()
		}
		if tries == 100 {
			t.Fatal(err)
		}
	}
}

func eventually(t *testing.T, what string, done func() error) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := done()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited a minute for %s: %v", what, err)
		}
	}
}
