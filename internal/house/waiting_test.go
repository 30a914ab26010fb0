package house

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

// client-go's WaitForCacheSync asks each 100 ms; cache.WaitFor is told.
func TestNobodyPollsForACache(t *testing.T) {
	goFiles(t, func(path string, file *ast.File, fset *token.FileSet) {
		if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "test/") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && (s.Sel.Name == "WaitForCacheSync" || s.Sel.Name == "WaitForNamedCacheSync") {
				t.Errorf("%s: %s polls: use cache.WaitFor with HasSyncedChecker", fset.Position(n.Pos()), s.Sel.Name)
			}
			return true
		})
	})
}
