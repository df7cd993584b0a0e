package serving

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/process"
	"github.com/tandem-gateway/tandem/loadtest/testlog"
)

// write writes a file anew.
func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Changes are noticed while another file of the directory is written all the time, where the file is a link to one
// elsewhere, and where another directory has taken the place of its own.
func TestFileWatch_NoticesChanges(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, dir, file string){
		"beside a file that never rests": func(t *testing.T, dir, file string) {
			noise := filepath.Join(dir, "noise.log")
			go func() {
				for ticker := time.NewTicker(quietTime / 20); t.Context().Err() == nil; <-ticker.C {
					_ = os.WriteFile(noise, []byte(time.Now().String()), 0o600) // fails once the directory is gone
				}
			}()
			eventually(t, "there is noise", func() bool { _, err := os.Stat(noise); return err == nil })
			write(t, file, "new")
		},
		"behind a link": func(t *testing.T, _, file string) {
			target, err := filepath.EvalSymlinks(file)
			if err != nil {
				t.Fatal(err)
			}
			write(t, target, "new")
		},
		"in another directory of the name": func(t *testing.T, dir, file string) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			write(t, file, "new")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			real, dir := filepath.Join(t.TempDir(), "real.yaml"), filepath.Join(t.TempDir(), "watched")
			file := filepath.Join(dir, "tandem.yaml")
			write(t, real, "old")
			if name == "behind a link" {
				write(t, filepath.Join(dir, "other"), "")
				if err := os.Symlink(real, file); err != nil {
					t.Fatal(err)
				}
			} else {
				write(t, file, "old")
			}
			changes := watchFile(t.Context(), file, contentHash(file), slog.New(slog.DiscardHandler))
			noticed := func(content string) {
				for deadline := time.After(10 * time.Second); ; {
					select {
					case <-changes:
					case <-deadline:
						t.Fatalf("%s was not noticed", content)
					}
					if is, _ := os.ReadFile(file); string(is) == content {
						return
					}
				}
			}
			write(t, real, "first")
			if name != "behind a link" {
				write(t, file, "first")
			}
			noticed("first") // perhaps by the look with which a watch begins
			change(t, dir, file)
			noticed("new")
			write(t, file, "newer") // a link is followed
			noticed("newer")
		})
	}
}

// Where the directory cannot be watched, as where the kernel watches no more for the user, changes are noticed by
// looks at the file.
func TestFileWatch_LooksWhereTheDirectoryCannotBeWatched(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "later", "tandem.yaml")
	changes := watchFile(t.Context(), file, nil, slog.New(slog.DiscardHandler))
	for _, content := range []string{"first", "second"} {
		write(t, file, content)
		select {
		case <-changes:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s was not noticed", content)
		}
	}
}

// A gateway that is told to read its files again while it starts, as by systemctl reload, is not ended by that. Its
// configuration is a named pipe: it starts no further than to where nobody has written that yet.
func TestServe_SIGHUPAmidTheStartEndsNothing(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tandem.yaml")
	if err := syscall.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	addrs, err := process.FreeAddresses(2)
	if err != nil {
		t.Fatal(err)
	}
	var log testlog.Buffer
	p, err := process.Start("gateway", &log, nil, tandemBinary(t), "serve", "--config", file, "--both", "http://127.0.0.1:1", "--listen", addrs[0], "--admin", addrs[1])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill) // what reads the file again waits for it to be written
	// reads reports whether the file is being read, and has what reads it find it empty once writer is closed.
	reads := func() (writer *os.File, is bool) {
		writer, err := os.OpenFile(file, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		return writer, err == nil
	}
	var writer *os.File
	eventually(t, "it reads its configuration", func() (is bool) {
		writer, is = reads()
		return is
	})
	if err := syscall.Kill(p.PID(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	admin := http.Client{Timeout: time.Second}
	eventually(t, "it serves", func() bool {
		if writer, is := reads(); is {
			_ = writer.Close()
		}
		resp, err := admin.Get("http://" + addrs[1] + "/livez")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}
