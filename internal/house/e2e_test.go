package house

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestIndexOfEndToEndTests: test/e2e/README.md lists every end-to-end test, with
// its file and whether only make test-all runs it, and none that does not exist.
func TestIndexOfEndToEndTests(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "test/e2e/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{} // by test
	for _, line := range strings.Split(string(text), "\n") {
		if name, rest, ok := strings.Cut(strings.TrimPrefix(line, "| `"), "` | "); ok && strings.HasPrefix(line, "| `Test") {
			rows[name] = rest
		}
	}
	goFiles(t, func(path string, file *ast.File, _ *token.FileSet) {
		if !strings.HasPrefix(path, "test/e2e/") || !strings.HasSuffix(path, "_test.go") {
			return
		}
		for _, d := range file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Test") || fn.Name.Name == "TestMain" {
				continue
			}
			at := strings.TrimPrefix(path, "test/e2e/")
			row, ok := rows[fn.Name.Name]
			if !ok || !strings.HasSuffix(row, "| "+at+" |") {
				t.Errorf("test/e2e/README.md does not list %s of %s", fn.Name.Name, at)
			}
			if marked := strings.Contains(row, "| all |"); ok && marked != onlyInAll(fn) {
				t.Errorf("test/e2e/README.md says of %s that only test-all runs it: %t; the code: %t", fn.Name.Name, marked, onlyInAll(fn))
			}
			delete(rows, fn.Name.Name)
		}
	})
	for name := range rows {
		t.Errorf("test/e2e/README.md lists %s, which is no test", name)
	}
}

// onlyInAll says whether a test begins with kit.OnlyInAll.
func onlyInAll(fn *ast.FuncDecl) bool {
	if len(fn.Body.List) == 0 {
		return false
	}
	e, ok := fn.Body.List[0].(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := e.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	s, ok := call.Fun.(*ast.SelectorExpr)
	return ok && s.Sel.Name == "OnlyInAll"
}
