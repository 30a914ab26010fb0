package house

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

// most is how many fields a configuration may have that is filled by hand: who
// wires a part must see all of it at once. What is wider has groups in it.
const most = 20

// wideStructs are configurations that may have more fields, and why.
var wideStructs = map[string]string{
	"internal/nodes/launch.Options": "the command line, a field per flag: the flag library fills it",
	"internal/cluster.Config":       "the command line of berth up, a field per flag: the flag library fills it",
}

// TestStructsAreNotWide: a Config or Options that is filled by hand has at most
// that many fields. An embedded struct counts as one.
func TestStructsAreNotWide(t *testing.T) {
	seen := map[string]bool{}
	goFiles(t, func(path string, file *ast.File, fset *token.FileSet) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || !strings.HasSuffix(spec.Name.Name, "Config") && !strings.HasSuffix(spec.Name.Name, "Options") {
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
