package mutate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/go/packages"
)

// find returns all places of a package of this module where an operator applies, in the order
// of files and lines. Tests and generated files have none.
func find(dir string) (name string, places []place, err error) {
	loaded, err := packages.Load(&packages.Config{
		Dir: dir,
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes |
			packages.NeedTypesInfo | packages.NeedImports | packages.NeedExportFile,
	}, ".")
	if err != nil {
		return "", nil, fmt.Errorf("load %s: %w", dir, err)
	}
	p := loaded[0]
	if len(p.Errors) > 0 {
		return "", nil, fmt.Errorf("load %s: %w", dir, p.Errors[0])
	}
	for _, file := range p.Syntax {
		path := p.Fset.Position(file.Pos()).Filename
		source, err := os.ReadFile(path)
		if err != nil {
			return "", nil, err
		}
		if filepath.Dir(path) != dir || strings.Contains(string(source), "// Code generated ") {
			continue
		}
		if p.Fset.File(file.Pos()).Size() != len(source) {
			return "", nil, errSourceChanged(path)
		}
		f := finder{fset: p.Fset, info: p.TypesInfo, path: path, source: source}
		f.file(file)
		places = append(places, f.places...)
	}
	if places, err = compilable(dir, p.Name, places); err != nil {
		return "", nil, err
	}
	slices.SortStableFunc(places, func(a, b place) int {
		if c := strings.Compare(a.path, b.path); c != 0 {
			return c
		}
		return a.insertions[0].at - b.insertions[0].at
	})
	seen := map[string]int{}
	for i := range places {
		name := places[i].Name()
		places[i].Ordinal = seen[name]
		seen[name]++
	}
	return p.Name, places, nil
}

// errSourceChanged says that a file was written while faults were put into it: their places
// in it are not known any more.
func errSourceChanged(path string) error {
	return fmt.Errorf("%s was changed while faults were put into it: run mutate again while nothing writes to the module", path)
}

// compilable leaves out the places on lines that do not compile with all switches in.
func compilable(dir, name string, places []place) ([]place, error) {
	for {
		files, err := changed(name, dir, places)
		if err != nil {
			return nil, err
		}
		loaded, err := packages.Load(&packages.Config{
			Dir: dir, Overlay: files,
			Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedSyntax |
				packages.NeedTypes | packages.NeedTypesInfo | packages.NeedImports | packages.NeedExportFile,
		}, ".")
		if err != nil {
			return nil, fmt.Errorf("load %s with faults: %w", dir, err)
		}
		if len(loaded[0].Errors) == 0 {
			return places, nil
		}
		refused := map[string]bool{}
		for _, e := range loaded[0].Errors {
			file, at, _ := strings.Cut(base(e.Pos), ":")
			line, _, _ := strings.Cut(at, ":")
			refused[file+":"+line] = true
		}
		left := slices.DeleteFunc(slices.Clone(places), func(p place) bool {
			return refused[p.File+":"+strconv.Itoa(p.Line)]
		})
		if len(left) == len(places) {
			return nil, fmt.Errorf("load %s with faults: %w", dir, loaded[0].Errors[0])
		}
		places = left
	}
}

// apply returns a file's source with the given places in it, place i behind switch i.
func apply(source []byte, places map[int]place) []byte {
	var all []insertion
	for id, p := range places {
		for _, in := range p.insertions {
			in.id, in.text = id, strings.Replace(in.text, "%d", strconv.Itoa(id), 1)
			all = append(all, in)
		}
	}
	slices.SortStableFunc(all, func(a, b insertion) int {
		switch {
		case a.at != b.at:
			return a.at - b.at
		case a.closes != b.closes:
			if a.closes {
				return -1
			}
			return 1
		case a.other != b.other:
			return b.other - a.other // the inner closes first, the outer opens first
		case a.closes:
			return b.id - a.id
		default:
			return a.id - b.id
		}
	})
	var out []byte
	at := 0
	for _, in := range all {
		out = append(out, source[at:in.at]...)
		out = append(out, in.text...)
		at = in.at + in.drop
	}
	return append(out, source[at:]...)
}

// switches is the file that is added to the package.
const switches = `package %s

import (
	"cmp"
	"os"
	"strconv"
	"sync"
)

var (
	mutantNumber, _ = strconv.Atoi(os.Getenv("MUTANT"))
	mutantReached   = os.Getenv("MUTANT_REACHED")
	mutantSeen      sync.Map
)

// mutantOn says whether a fault is on, and notes that a test came by.
func mutantOn(id int) bool {
	if mutantReached != "" {
		if _, seen := mutantSeen.LoadOrStore(id, true); !seen {
			f, err := os.OpenFile(mutantReached, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
			if err != nil {
				panic(err)
			}
			_, _ = f.WriteString(strconv.Itoa(id) + "\n")
			_ = f.Close()
		}
	}
	return id == mutantNumber
}

func mutantLess[T cmp.Ordered](id int, a, b T) bool    { return a < b || mutantOn(id) && a == b }
func mutantAtMost[T cmp.Ordered](id int, a, b T) bool  { return a < b || a == b && !mutantOn(id) }
func mutantMore[T cmp.Ordered](id int, a, b T) bool    { return a > b || mutantOn(id) && a == b }
func mutantAtLeast[T cmp.Ordered](id int, a, b T) bool { return a > b || a == b && !mutantOn(id) }

type mutantInteger interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

func mutantPlus[T mutantInteger](id int, a, b T) T {
	if mutantOn(id) {
		return a
	}
	return a + b
}

func mutantMinus[T mutantInteger](id int, a, b T) T {
	if mutantOn(id) {
		return a
	}
	return a - b
}

func mutantSwap[T any](id int, a, b T) (T, T) {
	if mutantOn(id) {
		return b, a
	}
	return a, b
}

func mutantNil(id int, err error) error {
	if mutantOn(id) {
		return nil
	}
	return err
}
`

// changed is the package's files with all places in them, by path, and the file of the
// switches. The switch of places[i] is i+1: 0 is none.
func changed(name, dir string, places []place) (map[string][]byte, error) {
	byFile := map[string]map[int]place{}
	for i, p := range places {
		if byFile[p.path] == nil {
			byFile[p.path] = map[int]place{}
		}
		byFile[p.path][i+1] = p
	}
	files := map[string][]byte{filepath.Join(dir, "mutant_switches.go"): fmt.Appendf(nil, switches, name)}
	for path, of := range byFile {
		source, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		for _, p := range of {
			if !bytes.Equal(source, p.source) {
				return nil, errSourceChanged(path)
			}
			break // all places of a file have the same
		}
		files[path] = apply(source, of)
	}
	return files, nil
}

// overlay writes the changed files into work, and the list that go build's -overlay takes.
func overlay(dir, name, work string, places []place) (string, error) {
	files, err := changed(name, dir, places)
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for path, content := range files {
		to := filepath.Join(work, base(path)+".txt") // not a package of the module
		if err := os.WriteFile(to, content, 0o644); err != nil {
			return "", err
		}
		replace[path] = to
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(work, "overlay.json")
	return path, os.WriteFile(path, list, 0o644)
}
