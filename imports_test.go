package queue

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/sqlqueue/queue"

// TestImports holds the root package, the seam and the engines to the standard
// library and sqlx: whoever imports them has chosen no driver yet.
func TestImports(t *testing.T) {
	allowed := []string{"github.com/jmoiron/sqlx", "github.com/jmoiron/sqlx/reflectx"}
	packages := []string{module, module + "/dialect"}
	for _, engine := range []string{"postgres", "sqlite", "mysql", "sqlserver"} {
		if files, _ := filepath.Glob(engine + "/*.go"); len(files) > 0 {
			packages = append(packages, module+"/"+engine)
		}
	}
	for _, pkg := range packages {
		cmd := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", pkg)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v", cmd, err)
		}
		deps := strings.Fields(string(out))
		if !slices.Contains(deps, pkg) {
			t.Fatalf("go list -deps %s said %q", pkg, deps)
		}
		for _, dep := range deps {
			switch {
			case dep == pkg, slices.Contains(allowed, dep), dep == module+"/dialect":
			default:
				t.Errorf("%s depends on %s", pkg, dep)
			}
		}
	}
}

// core parses the root package's and the seam's own files.
func core(t *testing.T) (*token.FileSet, map[string]*ast.File) {
	t.Helper()
	fset := token.NewFileSet()
	files := map[string]*ast.File{}
	for _, pattern := range []string{"*.go", "dialect/*.go"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files[name] = f
		}
	}
	if len(files) < 10 {
		t.Fatalf("found only %d files", len(files))
	}
	return fset, files
}

var engineNames = regexp.MustCompile(`(?i)postgres|\bpgx?\b|sqlite|mysql|mariadb|sql ?server|mssql|cockroach|yugabyte|citus|tidb`)

// TestNoEngineNames: the core never asks which database it has. Comments may
// speak of engines; code may neither name one nor look at what Check called it.
func TestNoEngineNames(t *testing.T) {
	fset, files := core(t)
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ImportSpec:
				return false // TestImports
			case *ast.BasicLit:
				if n.Kind == token.STRING && engineNames.MatchString(n.Value) {
					t.Errorf("%v names an engine: %s", fset.Position(n.Pos()), n.Value)
				}
			case *ast.Ident:
				if engineNames.MatchString(n.Name) {
					t.Errorf("%v names an engine: %s", fset.Position(n.Pos()), n.Name)
				}
			case *ast.BinaryExpr:
				for _, x := range []ast.Expr{n.X, n.Y} {
					if isServerEngine(x) {
						t.Errorf("%v compares the engine's name", fset.Position(n.Pos()))
					}
				}
			case *ast.SwitchStmt:
				if n.Tag != nil && isServerEngine(n.Tag) {
					t.Errorf("%v switches on the engine's name", fset.Position(n.Pos()))
				}
			case *ast.TypeSwitchStmt:
				if usesEngine(n.Assign) {
					t.Errorf("%v switches on the engine's type", fset.Position(n.Pos()))
				}
			case *ast.TypeAssertExpr:
				if usesEngine(n.X) {
					t.Errorf("%v asserts the engine's type", fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

func isServerEngine(x ast.Expr) bool {
	sel, ok := x.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "Engine"
}

func usesEngine(n ast.Node) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "engine" {
			found = true
		}
		return !found
	})
	return found
}

// TestClock holds the core to the database's clock: what comes from this
// process's clock measures intervals here, and reaches neither a statement nor
// a row.
func TestClock(t *testing.T) {
	fset, files := core(t)
	found := 0
	for _, f := range files {
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			local := map[string]bool{} // variables that hold such a time
			ast.Inspect(fn, func(n ast.Node) bool {
				if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == len(a.Rhs) {
					for i, rhs := range a.Rhs {
						if id, ok := a.Lhs[i].(*ast.Ident); ok && isNow(rhs) {
							local[id.Name] = true
						}
					}
				}
				return true
			})
			var holds func(n ast.Node) token.Pos
			holds = func(n ast.Node) (at token.Pos) {
				ast.Inspect(n, func(n ast.Node) bool {
					switch n := n.(type) {
					case *ast.SelectorExpr: // in x.now.at the variable is x
						if pos := holds(n.X); pos.IsValid() {
							at = pos
						}
						return false
					case *ast.CallExpr:
						if isNow(n) {
							at = n.Pos()
						}
					case *ast.Ident:
						if local[n.Name] {
							at = n.Pos()
						}
					}
					return true
				})
				return at
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					if isNow(n) {
						found++
					}
					sel, ok := n.Fun.(*ast.SelectorExpr)
					if !ok {
						return true
					}
					switch sel.Sel.Name {
					case "Select", "Run", "Query", "QueryHot", "Exec", "ExecHot", "Claim", "Settle", "Insert":
						for _, arg := range n.Args {
							if _, isFunc := arg.(*ast.FuncLit); isFunc {
								continue
							}
							if at := holds(arg); at.IsValid() {
								t.Errorf("%v: this process's clock reaches a statement", fset.Position(at))
							}
						}
					case "Unix", "UnixMicro", "UnixMilli", "UnixNano", "Format", "UTC", "In", "MarshalJSON":
						if at := holds(sel.X); at.IsValid() {
							t.Errorf("%v: this process's clock is read as a time of day", fset.Position(at))
						}
					}
				case *ast.CompositeLit:
					if sel, ok := n.Type.(*ast.SelectorExpr); ok && fmt.Sprint(sel.X) == "dialect" {
						for _, elt := range n.Elts {
							if at := holds(elt); at.IsValid() {
								t.Errorf("%v: this process's clock reaches the engine", fset.Position(at))
							}
						}
					}
				}
				return true
			})
		}
	}
	if found < 5 {
		t.Fatalf("found only %d uses of the clock: the test looks at the wrong thing", found)
	}
}

func isNowFunc(n *ast.SelectorExpr) bool {
	return fmt.Sprint(n.X) == "time" && n.Sel.Name == "Now"
}

// isNow reports whether an expression is time.Now(), with an Add or so.
func isNow(x ast.Expr) bool {
	for {
		call, ok := x.(*ast.CallExpr)
		if !ok {
			return false
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return false
		}
		if isNowFunc(sel) {
			return true
		}
		x = sel.X
	}
}
