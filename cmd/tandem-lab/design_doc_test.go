package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// step is a line of a flow in docs/DESIGN.md: "1. `pd/orchestrator.go:Orchestrator.Run` ...".
var step = regexp.MustCompile("(?m)^\\d+\\. `([a-z0-9_/]+\\.go):([A-Za-z0-9_.]+)`")

// The flows of docs/DESIGN.md, and the answers of CONTRIBUTING.md, name functions that there are.
func TestDesign_FlowsNameWhatThereIs(t *testing.T) {
	root := filepath.Join("..", "..")
	for page, least := range map[string]int{"docs/DESIGN.md": 5, "CONTRIBUTING.md": 2} { // with fewer it is not read
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		steps := step.FindAllStringSubmatch(string(text), -1)
		if len(steps) < least {
			t.Errorf("only %d steps are found in %s", len(steps), page)
		}
		for _, s := range steps {
			if file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, s[1]), nil, parser.SkipObjectResolution); err != nil {
				t.Errorf("%s: %v", page, err)
			} else if !declares(file, s[2]) {
				t.Errorf("%s: %s declares no %s", page, s[1], s[2])
			}
		}
	}
}

// declares says whether a file has the function, Type.Method or type of that name.
func declares(file *ast.File, name string) bool {
	of, method, isMethod := strings.Cut(name, ".")
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if !isMethod && d.Recv == nil && d.Name.Name == name {
				return true
			}
			if isMethod && d.Recv != nil && d.Name.Name == method && strings.TrimPrefix(typeName(d.Recv.List[0].Type), "*") == of {
				return true
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if s, ok := spec.(*ast.TypeSpec); ok && s.Name.Name == name {
					return true
				}
			}
		}
	}
	return false
}

func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return "*" + typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
