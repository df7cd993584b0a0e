package mutate

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"
)

// Operator is a kind of fault.
type Operator string

// The operators. Each changes one place, so that a survivor names one missing assertion.
const (
	Negate   Operator = "negate condition" // if, for, case and each side of && and ||
	DropCall Operator = "drop call"        // a statement that is a call
	DropStop Operator = "drop defer"       // a deferred call
	DropLock Operator = "drop lock"        // all Lock and Unlock of one mutex in one function
	OffByOne Operator = "off by one"       // < for <=, > for >=, and back; x+1 and x-1
	Return   Operator = "swap return"      // !b for b, (b, a) for (a, b), nil for an error
)

// Mutant is one fault.
type Mutant struct {
	Operator Operator
	File     string // base name
	Line     int
	Func     string // with its receiver: Fleet.Add
	Source   string // what is changed, on one line
	Ordinal  int    // among those that are the same in all of the above but Line, from 0
}

// Name says which fault it is, without its line: edits elsewhere do not change it.
func (m Mutant) Name() string {
	name := m.File + " " + m.Func + ": " + string(m.Operator) + ": " + m.Source
	return name + strings.Repeat(" (again)", m.Ordinal)
}

// insertion is text that is put into a source file. Those that end a place close before
// others open there, and of several the inner ones close first and the outer open first; of
// those around the same text the first found is the outer one.
type insertion struct {
	id     int  // of the place's switch
	at     int  // offset
	closes bool // it ends what another one begins
	other  int  // offset of the other end
	drop   int  // bytes of the source that it takes the place of
	text   string
}

// place is a mutant and what must be written into its file to have it behind a switch. %d in
// the texts is the switch's number.
type place struct {
	Mutant
	path       string
	source     []byte // of the whole file, as the insertions count in it
	insertions []insertion
}

// finder collects the places of one file.
type finder struct {
	fset   *token.FileSet
	info   *types.Info
	path   string
	source []byte
	places []place
	fn     string
	locks  map[string]int // by function and mutex: its place
}

func (f *finder) offset(p token.Pos) int { return f.fset.Position(p).Offset }

func (f *finder) text(n ast.Node) string {
	return string(f.source[f.offset(n.Pos()):f.offset(n.End())])
}

// add notes a fault at a node, behind texts put before and after it.
func (f *finder) add(op Operator, n ast.Node, before, after string, more ...insertion) {
	from, to := f.offset(n.Pos()), f.offset(n.End())
	f.places = append(f.places, place{
		Mutant: Mutant{
			Operator: op, File: base(f.path), Line: f.fset.Position(n.Pos()).Line, Func: f.fn,
			Source: oneLine(f.text(n)),
		},
		path: f.path, source: f.source,
		insertions: append([]insertion{
			{at: from, other: to, text: before},
			{at: to, other: from, closes: true, text: after},
		}, more...),
	})
}

// file looks at every function of a file.
func (f *finder) file(file *ast.File) {
	f.locks = map[string]int{}
	for _, d := range file.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		f.fn = fn.Name.Name
		if fn.Recv != nil && len(fn.Recv.List) == 1 {
			f.fn = receiver(fn.Recv.List[0].Type) + "." + f.fn
		}
		signature, _ := f.info.Defs[fn.Name].Type().(*types.Signature)
		f.block(fn.Body, signature)
	}
}

// block looks at the statements of a function; function literals in it have their own
// signature.
func (f *finder) block(n ast.Node, signature *types.Signature) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			own, _ := f.info.TypeOf(n).(*types.Signature)
			f.block(n.Body, own)
			return false
		case *ast.IfStmt:
			f.condition(n.Cond)
		case *ast.ForStmt:
			if n.Cond != nil {
				f.condition(n.Cond)
			}
		case *ast.SwitchStmt:
			f.cases(n)
		case *ast.BinaryExpr:
			f.binary(n)
		case *ast.ExprStmt:
			f.call(n)
		case *ast.DeferStmt:
			f.deferred(n)
		case *ast.ReturnStmt:
			f.returned(n, signature)
		}
		return true
	})
}

func (f *finder) condition(cond ast.Expr) {
	if f.isConstant(cond) {
		return
	}
	f.add(Negate, cond, "((", ") != mutantOn(%d))")
}

func (f *finder) cases(s *ast.SwitchStmt) {
	if s.Tag != nil {
		return
	}
	for _, c := range s.Body.List {
		for _, e := range c.(*ast.CaseClause).List {
			f.condition(e)
		}
	}
}

// binary finds the sides of && and ||, comparisons, and steps of one.
func (f *finder) binary(e *ast.BinaryExpr) {
	if f.isConstant(e) {
		return
	}
	name := ""
	switch e.Op {
	case token.LAND, token.LOR:
		f.condition(e.X)
		f.condition(e.Y)
		return
	case token.LSS:
		name = "mutantLess"
	case token.LEQ:
		name = "mutantAtMost"
	case token.GTR:
		name = "mutantMore"
	case token.GEQ:
		name = "mutantAtLeast"
	case token.ADD, token.SUB:
		if lit, ok := e.Y.(*ast.BasicLit); !ok || lit.Value != "1" {
			return
		}
		name = map[token.Token]string{token.ADD: "mutantPlus", token.SUB: "mutantMinus"}[e.Op]
	default:
		return
	}
	if !isInteger(f.info.TypeOf(e.X)) || !isInteger(f.info.TypeOf(e.Y)) {
		return // the edge of what is continuous, or of a text, is nothing that a test should look for
	}
	at := f.offset(e.OpPos)
	f.add(OffByOne, e, name+"(%d, ", ")", insertion{at: at, other: at, closes: true, drop: len(e.Op.String()), text: ","})
}

// logs are calls whose loss no test should look for.
var logs = []string{"log.", "Log.", "slog.", "fmt.Fprint", "fmt.Print"}

func (f *finder) call(s *ast.ExprStmt) {
	call, ok := s.X.(*ast.CallExpr)
	if !ok {
		return
	}
	if id, ok := call.Fun.(*ast.Ident); ok && id.Name == "panic" {
		return // the function might then end without a result, which does not compile
	}
	if mutex, ok := f.mutex(call); ok {
		f.lock(mutex, s)
		return
	}
	text := f.text(call.Fun)
	for _, l := range logs {
		if strings.HasPrefix(text, l) || strings.Contains(text, "."+l) {
			return
		}
	}
	f.add(DropCall, s, "if !mutantOn(%d) { ", " }")
}

func (f *finder) deferred(s *ast.DeferStmt) {
	if mutex, ok := f.mutex(s.Call); ok {
		f.lock(mutex, s)
		return
	}
	f.add(DropStop, s, "if !mutantOn(%d) { ", " }")
}

// mutex is what a call locks or unlocks.
func (f *finder) mutex(call *ast.CallExpr) (string, bool) {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) > 0 {
		return "", false
	}
	switch sel.Sel.Name {
	case "Lock", "Unlock", "RLock", "RUnlock":
		return f.text(sel.X), true
	}
	return "", false
}

// lock drops all that a function does with a mutex, together.
func (f *finder) lock(mutex string, s ast.Stmt) {
	key := f.fn + " " + mutex
	i, ok := f.locks[key]
	if !ok {
		f.add(DropLock, s, "if !mutantOn(%d) { ", " }")
		f.places[len(f.places)-1].Source = mutex
		f.locks[key] = len(f.places) - 1
		return
	}
	from, to := f.offset(s.Pos()), f.offset(s.End())
	f.places[i].insertions = append(f.places[i].insertions,
		insertion{at: from, other: to, text: "if !mutantOn(%d) { "},
		insertion{at: to, other: from, closes: true, text: " }"})
}

func (f *finder) returned(s *ast.ReturnStmt, signature *types.Signature) {
	if signature == nil || len(s.Results) != signature.Results().Len() || len(s.Results) == 0 {
		return
	}
	last := s.Results[len(s.Results)-1]
	result := signature.Results().At(len(s.Results) - 1).Type()
	switch {
	case types.Identical(result, types.Typ[types.Bool]):
		f.add(Return, last, "((", ") != mutantOn(%d))")
	case types.Identical(result, types.Universe.Lookup("error").Type()) && f.text(last) != "nil":
		f.add(Return, last, "mutantNil(%d, ", ")")
	}
	if len(s.Results) != 2 || !types.Identical(result, signature.Results().At(0).Type()) {
		return
	}
	if a, b := s.Results[0], s.Results[1]; f.text(a) != f.text(b) && !f.isConstant(a) && !f.isConstant(b) {
		from, to := f.offset(a.Pos()), f.offset(b.End())
		f.add(Return, s, "", "", insertion{at: from, other: to, text: "mutantSwap(%d, "}, insertion{at: to, other: from, closes: true, text: ")"})
	}
}

func (f *finder) isConstant(e ast.Expr) bool {
	v, ok := f.info.Types[e]
	return !ok || v.Value != nil || v.IsNil()
}

func isInteger(t types.Type) bool {
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsInteger != 0
}

// receiver is the name of a method's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "?"
}

// oneLine is source text as it stands in a name: without line breaks, and not too long.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 100 {
		s = s[:100] + "..."
	}
	return s
}

func base(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }
