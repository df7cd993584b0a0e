package e2e

import (
	"bytes"
	"debug/elf"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// imageUser is USER of deploy/Dockerfile.
const imageUser = 65532

// runInImage runs the gateway in a root directory that holds what its image does: the program, the
// shared libraries of the installed packages and of what they depend on, and the authorities of TLS.
// Nothing else of this machine is there, and its user may write nowhere.
func runInImage(t *testing.T, binary string, installed []string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Log("not root: the program was not run in a root of its own")
		return
	}
	root := imageRoot(t, binary, installed)
	before := filesBelow(t, root)
	engine, listen, admin := freeAddress(t), freeAddress(t), freeAddress(t)
	start(t, "engine", "bin/tandem-lab", "engine", "--listen", engine, "--model", "m")
	var printed bytes.Buffer
	gateway := exec.Command("/usr/local/bin/tandem", "serve", "--both", "http://"+engine, "--listen", listen, "--admin", admin)
	gateway.Dir, gateway.Stdout, gateway.Stderr, gateway.Env = "/", &printed, &printed, []string{}
	gateway.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: imageUser, Gid: imageUser}}
	if err := gateway.Start(); err != nil {
		t.Fatalf("the program does not start in its image: %v", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- gateway.Wait() }()
	waitFor(t, nil, "the gateway in its image", readyWithin, func() error {
		select {
		case err := <-ended:
			t.Fatalf("the gateway ended in its image: %v\n%s", err, printed.String())
		default:
		}
		return answers("http://" + admin + "/readyz")()
	})
	if status, body := complete(t, listen, "m"); status != http.StatusOK {
		t.Errorf("the gateway in its image: %d %s", status, body)
	}
	if err := gateway.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the gateway's end in its image: %v\n%s", err, printed.String())
	}
	if after := filesBelow(t, root); !slices.Equal(before, after) {
		t.Errorf("the gateway wrote to its image: it holds %d files, %d before", len(after), len(before))
	}
}

// imageRoot is a directory with the files of the image.
func imageRoot(t *testing.T, binary string, installed []string) string {
	t.Helper()
	root := t.TempDir()
	put := func(from, to string) {
		content, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		to = filepath.Join(root, to)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"lib", "lib64"} { // as Debian has them since 12
		if err := os.Symlink("usr/"+name, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	put(binary, "usr/local/bin/tandem")
	put("/etc/ssl/certs/ca-certificates.crt", "etc/ssl/certs/ca-certificates.crt")
	put(interpreter(t, binary), filepath.Join("usr", interpreter(t, binary)))
	for _, pkg := range withDependencies(t, append([]string{"libc6"}, packagesIn(installed)...)) {
		files, err := exec.Command("dpkg", "-L", pkg).Output()
		if err != nil {
			t.Fatalf("files of %s: %v", pkg, err)
		}
		for file := range strings.Lines(string(files)) {
			file = strings.TrimSpace(file)
			info, err := os.Stat(file)
			if err != nil || !info.Mode().IsRegular() || !strings.Contains(filepath.Base(file), ".so") {
				continue
			}
			put(file, filepath.Join("usr", strings.TrimPrefix(file, "/usr")))
		}
	}
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	return root
}

// packagesIn are the packages that lines of a Dockerfile install, by their words.
func packagesIn(words []string) (packages []string) {
	installs := false
	for _, word := range words {
		switch {
		case word == "install":
			installs = true
		case word == "&&":
			installs = false
		case installs && !strings.HasPrefix(word, "-"):
			packages = append(packages, word)
		}
	}
	return packages
}

// withDependencies are the packages and all that they depend on, as far as this machine has them: of
// alternatives those that are there.
func withDependencies(t *testing.T, packages []string) (all []string) {
	t.Helper()
	for len(packages) > 0 {
		pkg := packages[0]
		packages = packages[1:]
		if slices.Contains(all, pkg) {
			continue
		}
		depends, err := exec.Command("dpkg-query", "-W", "-f", "${db:Status-Status} ${Depends},${Pre-Depends}", pkg).Output()
		listed, installed := strings.CutPrefix(string(depends), "installed ")
		if err != nil || !installed {
			continue // another one of alternatives is there, or this is no package but what one provides
		}
		all = append(all, pkg)
		for _, name := range strings.FieldsFunc(listed, func(r rune) bool { return r == ',' || r == '|' }) {
			name, _, _ = strings.Cut(strings.TrimSpace(name), " ")
			name, _, _ = strings.Cut(name, ":")
			packages = append(packages, name)
		}
	}
	return all
}

// interpreter is the dynamic linker that a program names.
func interpreter(t *testing.T, binary string) string {
	t.Helper()
	file, err := elf.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			name := make([]byte, p.Filesz)
			if _, err := p.ReadAt(name, 0); err != nil {
				t.Fatal(err)
			}
			return strings.TrimRight(string(name), "\x00")
		}
	}
	t.Fatalf("%s names no dynamic linker", binary)
	return ""
}

// filesBelow are the paths of all that a directory holds.
func filesBelow(t *testing.T, dir string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}
