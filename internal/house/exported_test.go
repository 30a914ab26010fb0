package house

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// mostUnused bounds the exported functions and types that no other package
// names. Types that other packages hold without naming them are among them.
const mostUnused = 100

// TestExportedNamesAreUsed counts exported functions and types of internal/ that
// no other package names. hack/names lists them with their types, and makes them
// lower case.
func TestExportedNamesAreUsed(t *testing.T) {
	declared, used := map[string]string{}, map[string]bool{} // "folder.Name"
	goFiles(t, func(file string, f *ast.File, fset *token.FileSet) {
		folder := path.Dir(file)
		imports := map[string]string{}
		for _, imp := range f.Imports {
			full, _ := strconv.Unquote(imp.Path.Value)
			if at, ok := strings.CutPrefix(full, module); ok {
				name := path.Base(at)
				if imp.Name != nil {
					name = imp.Name.Name
				}
				imports[name] = at
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && imports[x.Name] != "" {
					used[imports[x.Name]+"."+s.Sel.Name] = true
				}
			}
			return true
		})
		if strings.HasSuffix(file, "_test.go") || !strings.HasPrefix(folder, "internal/") || strings.HasPrefix(path.Base(file), "zz_") {
			return
		}
		for _, name := range exported(f) {
			declared[folder+"."+name.Name] = fmt.Sprintf("%s.%s", folder, name.Name)
		}
	})
	var unused []string
	for key, name := range declared {
		if !used[key] {
			unused = append(unused, name)
		}
	}
	slices.Sort(unused)
	if len(unused) > mostUnused {
		t.Errorf("%d exported functions and types are named by no other package, at most %d may be; unexport some of these:\n%s",
			len(unused), mostUnused, strings.Join(unused, "\n"))
	}
	t.Logf("%d of at most %d", len(unused), mostUnused)
}

// exported are the exported top-level functions and types of a file.
func exported(f *ast.File) (out []*ast.Ident) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil && d.Name.IsExported() {
				out = append(out, d.Name)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if ts, ok := s.(*ast.TypeSpec); ok && ts.Name.IsExported() {
					out = append(out, ts.Name)
				}
			}
		}
	}
	return out
}
