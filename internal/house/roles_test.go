package house

import (
	"go/ast"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// builders are the packages that build a role's configuration: one for each,
// so that no way to start a role can forget what another one sets.
var builders = map[string]string{
	"internal/agent": "internal/agent/launch",
	"internal/proxy": "internal/proxy/launch",
	"internal/nodes": "internal/nodes/launch",
}

func TestOneBuilderOfEachRole(t *testing.T) {
	built := map[string]bool{}
	goFiles(t, func(path string, file *ast.File, fset *token.FileSet) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		names := map[string]string{} // of imported roles
		for _, imp := range file.Imports {
			full, _ := strconv.Unquote(imp.Path.Value)
			role, ok := strings.CutPrefix(full, module)
			if !ok || builders[role] == "" {
				continue
			}
			name := filepath.Base(role)
			if imp.Name != nil {
				name = imp.Name.Name
			}
			names[name] = role
		}
		ast.Inspect(file, func(n ast.Node) bool {
			lit, ok := n.(*ast.CompositeLit)
			if !ok || len(lit.Elts) == 0 { // an empty one says nothing
				return true
			}
			sel, ok := lit.Type.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "Config" {
				return true
			}
			x, ok := sel.X.(*ast.Ident)
			if role := names[nameOf(x, ok)]; role != "" {
				if dir := filepath.ToSlash(filepath.Dir(path)); dir != builders[role] {
					t.Errorf("%s builds the configuration of %s: only %s may, so that all ways to start it agree",
						fset.Position(lit.Pos()), role, builders[role])
				}
				built[role] = true
			}
			return true
		})
	})
	for role, by := range builders {
		if !built[role] {
			t.Errorf("%s does not build the configuration of %s: the rule looks at nothing", by, role)
		}
	}
}

func nameOf(x *ast.Ident, ok bool) string {
	if !ok {
		return ""
	}
	return x.Name
}
