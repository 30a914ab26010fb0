package house

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

// most is how many fields a struct may have: who reads it must see all of it at
// once. What is wider has groups in it, embedded or named.
const most = 20

// wideStructs may have more fields, and why.
var wideStructs = map[string]string{
	"internal/control/api/registry.Kind": "one description of an API kind in the words of upstream's strategy, which is as wide; " +
		"each kind fills in a few of its fields, and groups would only add names that upstream does not have",
}

// TestStructsAreNotWide: a struct has at most that many fields. An embedded
// struct counts as one.
func TestStructsAreNotWide(t *testing.T) {
	seen := map[string]bool{}
	goFiles(t, func(path string, file *ast.File, fset *token.FileSet) {
		if strings.HasSuffix(path, "_test.go") || !strings.HasPrefix(path, "internal/") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			st, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			fields := 0
			for _, f := range st.Fields.List {
				fields += max(1, len(f.Names))
			}
			name := path[:strings.LastIndex(path, "/")] + "." + spec.Name.Name
			switch {
			case fields <= most:
			case wideStructs[name] != "":
				seen[name] = true
			default:
				t.Errorf("%s: %s has %d fields, and may have %d: group those that belong together",
					fset.Position(spec.Pos()), name, fields, most)
			}
			return true
		})
	})
	for name := range wideStructs {
		if !seen[name] {
			t.Errorf("%s has no more than %d fields: take it off the list", name, most)
		}
	}
}
