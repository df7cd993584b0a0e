package e2e

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// instruction is one line of a Dockerfile, continuation lines joined.
type instruction struct {
	stage string // name of its FROM, "" without one
	word  string // RUN, COPY, ...
	rest  string
}

// builtVersion is what the build is told that it builds.
const builtVersion = "v0.0.0-dockerfile-test"

// TestDockerfile replays deploy/Dockerfile as far as that goes without a container
// engine: see the comment at its top.
func TestDockerfile(t *testing.T) {
	lines := readDockerfile(t, "../../deploy/Dockerfile")
	context, out := buildContext(t), t.TempDir()
	for _, line := range lines {
		switch {
		case line.word == "COPY" && !strings.Contains(line.rest, "--from="):
			checkCopy(t, context, line)
		case line.word == "RUN" && strings.HasPrefix(line.rest, "go "):
			runBuildLine(t, context, strings.ReplaceAll(line.rest, "/out/", out+"/"))
		}
	}
	last := lines[len(lines)-1].stage
	for _, image := range []struct{ program, build, stage string }{{"tandem", "build", last}, {"tandem-lab", "build-lab", "lab"}} {
		t.Run(image.program, func(t *testing.T) {
			checkImage(t, stagesOf(lines, image.stage), image.build, filepath.Join(out, image.program))
		})
	}
}

// checkImage checks the image of one program by the lines that make it, less those of the
// builder.
func checkImage(t *testing.T, lines []instruction, build, binary string) {
	t.Helper()
	program := filepath.Base(binary)
	var installed []string
	user, copied := "", 0
	for _, line := range lines {
		switch line.word {
		case "COPY":
			copied++
			if want := "--from=" + build + " /out/" + program + " "; !strings.HasPrefix(line.rest, want) {
				t.Errorf("the image takes more than the program: %s", line.rest)
			}
		case "RUN":
			installed = append(installed, strings.Fields(line.rest)...)
		case "USER":
			user = line.rest
		}
	}
	if copied != 1 {
		t.Errorf("%d lines copy into the image", copied)
	}
	if user == "" || strings.HasPrefix(user, "0") || strings.Trim(user, "0123456789:") != "" {
		t.Errorf("USER is %q, want a number other than root's", user)
	}
	if out, err := exec.Command(binary, "version").CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != program+" "+builtVersion {
		t.Errorf("the program says %s of its version, want %s (%v)", out, builtVersion, err)
	}
	if out, err := exec.Command(binary, "--help").CombinedOutput(); err != nil {
		t.Errorf("the program does not start: %v\n%s", err, out)
	}
	if _, err := exec.LookPath("dpkg"); err != nil {
		t.Log("not a Debian system: the packages of the shared libraries were not checked")
		return
	}
	for library, pkg := range libraries(t, binary) {
		if !slices.Contains(installed, pkg) {
			t.Errorf("the program needs %s of package %s, which its image does not install", library, pkg)
		}
	}
	if program == "tandem" {
		runInImage(t, binary, installed)
	}
}

// stagesOf are the lines of a stage and of those of the file that it is built on.
func stagesOf(lines []instruction, stage string) (of []instruction) {
	for _, line := range slices.Backward(lines) {
		if line.stage != stage {
			continue
		}
		of = append(of, line)
		if line.word == "FROM" {
			stage, _, _ = strings.Cut(line.rest, " ")
		}
	}
	slices.Reverse(of)
	return of
}

func readDockerfile(t *testing.T, path string) []instruction {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var lines []instruction
	stage := ""
	joined := strings.ReplaceAll(string(text), "\\\n", " ")
	for line := range strings.Lines(joined) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if word == "" || strings.HasPrefix(word, "#") {
			continue
		}
		if word == "FROM" {
			_, stage, _ = strings.Cut(rest, " AS ")
		}
		lines = append(lines, instruction{stage, word, strings.TrimSpace(rest)})
	}
	return lines
}

// buildContext copies into a scratch folder what a builder would be sent: the files
// that belong to the repository, less those of Dockerfile.dockerignore.
func buildContext(t *testing.T) string {
	t.Helper()
	ignored, err := os.ReadFile("../../deploy/Dockerfile.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	// Every line there is a comment or the name of a top-level folder.
	skip := strings.Split(string(ignored), "\n")
	list := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard")
	list.Dir = "../.."
	files, err := list.Output()
	if err != nil {
		t.Fatalf("listing the repository's files: %v", err)
	}
	context := t.TempDir()
	for file := range strings.Lines(string(files)) {
		file = strings.TrimSpace(file)
		top, _, _ := strings.Cut(file, "/")
		from, to := filepath.Join("../..", file), filepath.Join(context, file)
		info, err := os.Lstat(from)
		if slices.Contains(skip, top) || os.IsNotExist(err) {
			continue // not sent, or removed and not yet committed
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := sendFile(from, to, info); err != nil {
			t.Fatal(err)
		}
	}
	return context
}

// sendFile copies a file into the build context, a link as a link.
func sendFile(from, to string, info os.FileInfo) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if info.Mode()&os.ModeSymlink != 0 {
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o644)
}

// checkCopy asserts that each source of a COPY line is in the build context.
func checkCopy(t *testing.T, context string, line instruction) {
	t.Helper()
	words := strings.Fields(line.rest)
	for _, source := range words[:len(words)-1] {
		if _, err := os.Stat(filepath.Join(context, source)); err != nil {
			t.Errorf("COPY %s: %v", line.rest, err)
		}
	}
}

func runBuildLine(t *testing.T, context, line string) {
	t.Helper()
	t.Logf("RUN %s", line)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
	cmd.Dir = context
	cmd.Env = append(os.Environ(), "VERSION="+builtVersion) // as --build-arg
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("RUN %s: %v\n%s", line, err, out)
	}
}

// libraries returns the shared libraries that a binary names, less those of libc
// itself, each with the Debian package that brings it.
func libraries(t *testing.T, binary string) map[string]string {
	t.Helper()
	file, err := elf.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	needed, err := file.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	packages := map[string]string{}
	for _, library := range needed {
		// -S prints "package:arch: /path/of/library" for every file that matches.
		owner, err := exec.Command("dpkg", "-S", "*/"+library).Output()
		if err != nil {
			t.Fatalf("no Debian package owns %s: %v", library, err)
		}
		name, _, _ := strings.Cut(string(owner), ":")
		if name != "libc6" {
			packages[library] = name
		}
	}
	return packages
}
