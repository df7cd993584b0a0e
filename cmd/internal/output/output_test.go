package output

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A report takes the place of the one before once there is something of it. Of work that fails nothing is left: neither
// an empty file, nor the loss of the report before.
func TestFiles_TakeThePlaceOfWhatWasThereWhenTheyAreWritten(t *testing.T) {
	dir := t.TempDir()
	before, fresh, unused := filepath.Join(dir, "before"), filepath.Join(dir, "fresh"), filepath.Join(dir, "unused")
	if err := os.WriteFile(before, []byte("a long report"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		writes       bool
		before, left string
	}{{false, "a long report", ""}, {true, "a new one", "a new one"}} {
		files, err := Create(before, "", fresh, unused)
		if err != nil {
			t.Fatal(err)
		}
		if x.writes {
			for _, f := range files[:3] {
				for _, part := range []string{"a new ", "one"} {
					if _, err := io.WriteString(f, part); err != nil {
						t.Error(err)
					}
				}
			}
		}
		if err := files.Close(); err != nil {
			t.Error(err)
		}
		for path, want := range map[string]string{before: x.before, fresh: x.left, unused: ""} {
			text, err := os.ReadFile(path)
			if string(text) != want || want == "" && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("written: %t: %s has %q, %v", x.writes, filepath.Base(path), text, err)
			}
		}
	}
}

// A device has no content to replace, and stays.
func TestFiles_OfADevice(t *testing.T) {
	files, err := Create(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(files[0], "x"); err != nil {
		t.Error(err)
	}
	if err := files.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(os.DevNull); err != nil {
		t.Error(err)
	}
}

// What cannot be written is refused with its path, and what was opened before it is not left behind.
func TestCreate_APathThatCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good"), filepath.Join(dir, "none", "bad")
	if _, err := Create(good, bad); err == nil || !strings.Contains(err.Error(), bad) {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(good); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", good, err)
	}
	if _, err := Create(dir); err == nil {
		t.Error("a directory was taken for a file")
	}
}
