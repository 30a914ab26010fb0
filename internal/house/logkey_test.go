package house

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

// logMethods are those of slog that take keys and values.
var logMethods = map[string]bool{"Debug": true, "Info": true, "Warn": true, "Error": true, "With": true}

// TestLogKeyOfErrors: an error stands under one key in all logs, "err".
func TestLogKeyOfErrors(t *testing.T) {
	goFiles(t, func(path string, file *ast.File, fset *token.FileSet) {
		if !strings.HasPrefix(path, "internal/") || strings.HasSuffix(path, "_test.go") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !logMethods[method.Sel.Name] {
				return true
			}
			// A key follows the message, or another value.
			for i, arg := range call.Args {
				key, ok := arg.(*ast.BasicLit)
				if !ok || key.Value != `"error"` || i+1 == len(call.Args) || i == 0 && method.Sel.Name != "With" {
					continue
				}
				t.Errorf("%s: the key of an error in logs is \"err\"", fset.Position(key.Pos()))
			}
			return true
		})
	})
}
