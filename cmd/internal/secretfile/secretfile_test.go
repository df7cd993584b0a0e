package secretfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A secret is what the file has without the space around it; errors name the setting and the file, and
// an empty file is one only where something must be in it.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	full, empty, absent := write("full", " s3cret\n"), write("empty", "\n"), filepath.Join(dir, "absent")
	for _, c := range []struct{ file, want, err, errFilled string }{
		{"", "", "", ""},
		{full, "s3cret", "", ""},
		{empty, "", "", "key-file: " + empty + " is empty"},
		{absent, "", "key-file: open " + absent, "key-file: open " + absent},
	} {
		for _, of := range []struct {
			read func(setting, file string) (string, error)
			err  string
		}{{Read, c.err}, {ReadFilled, c.errFilled}} {
			got, err := of.read("key-file", c.file)
			if want := of.err; got != c.want || (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%q: %q, %v, want %q, %q", c.file, got, err, c.want, want)
			}
		}
	}
}
