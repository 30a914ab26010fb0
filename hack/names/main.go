// Command names lists exported names that no other package uses, and renames
// identifiers throughout the module.
//
//	names list [packages]         exported functions, types, variables and constants that only their own package uses
//	names apply FILE [packages]   renames; each line of FILE is "folder Old New" or "folder Type.Member New"
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

const module = "github.com/berth-dev/berth/"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "names:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("want list or apply")
	}
	switch args[0] {
	case "list":
		m, err := load(args[1:])
		if err != nil {
			return err
		}
		m.list()
		return nil
	case "apply":
		wanted, err := read(args[1])
		if err != nil {
			return err
		}
		m, err := load(args[2:])
		if err != nil {
			return err
		}
		return m.apply(wanted)
	}
	return fmt.Errorf("%q is neither list nor apply", args[0])
}

// repository is the loaded module. Objects are known by the place where they are
// declared, because each package is loaded once with and once without tests.
type repository struct {
	fset *token.FileSet
	pkgs []*packages.Package
}

func load(patterns []string) (*repository, error) {
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	m := &repository{fset: token.NewFileSet()}
	cfg := &packages.Config{Fset: m.fset, Tests: true,
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes |
			packages.NeedTypesInfo | packages.NeedDeps | packages.NeedImports}
	var err error
	if m.pkgs, err = packages.Load(cfg, patterns...); err != nil {
		return nil, err
	}
	for _, p := range m.pkgs {
		for _, e := range p.Errors {
			return nil, e
		}
	}
	return m, nil
}

func (m *repository) at(p token.Pos) string {
	q := m.fset.Position(p)
	return fmt.Sprintf("%s:%d", q.Filename, q.Offset)
}

func folder(p *packages.Package) string {
	return strings.TrimSuffix(strings.TrimPrefix(p.PkgPath, module), "_test")
}

// uses calls f for each identifier that names an object of this module.
func (m *repository) uses(f func(p *packages.Package, id *ast.Ident, obj types.Object)) {
	for _, p := range m.pkgs {
		for id, obj := range p.TypesInfo.Uses {
			f(p, id, origin(obj))
		}
		for id, obj := range p.TypesInfo.Defs {
			if obj != nil {
				f(p, id, origin(obj))
			}
		}
		for node, obj := range p.TypesInfo.Implicits {
			_, _ = node, obj
		}
	}
}

func origin(o types.Object) types.Object {
	switch o := o.(type) {
	case *types.Func:
		return o.Origin()
	case *types.Var:
		return o.Origin()
	}
	return o
}

type name struct{ folder, kind, name, at string }

func (m *repository) list() {
	known, used := map[string]name{}, map[string]bool{}
	for _, p := range m.pkgs {
		if strings.HasSuffix(p.PkgPath, ".test") || strings.HasSuffix(p.PkgPath, "_test") || p.Name == "main" {
			continue
		}
		for _, n := range p.Types.Scope().Names() {
			obj := p.Types.Scope().Lookup(n)
			if !obj.Exported() || strings.HasSuffix(m.fset.Position(obj.Pos()).Filename, "_test.go") ||
				strings.Contains(m.fset.Position(obj.Pos()).Filename, "zz_") {
				continue
			}
			known[m.at(obj.Pos())] = name{folder(p), kind(obj), n, m.at(obj.Pos())}
		}
	}
	m.uses(func(p *packages.Package, id *ast.Ident, obj types.Object) {
		if obj.Pkg() != nil && obj.Pkg().Path() != p.PkgPath {
			used[m.at(obj.Pos())] = true
		}
	})
	var out []name
	for at, n := range known {
		if !used[at] {
			out = append(out, n)
		}
	}
	slices.SortFunc(out, func(a, b name) int {
		return cmp.Or(cmp.Compare(a.folder, b.folder), cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name))
	})
	held := m.held(used)
	for _, n := range out {
		word := ""
		if held[n.at] {
			word = "held"
		}
		fmt.Println(strings.TrimSpace(strings.Join([]string{n.folder, n.kind, n.name, word}, " ")))
	}
}

// held are the places of types that other packages have in hand without naming
// them: functions, methods and fields that they use give or take them.
func (m *repository) held(used map[string]bool) map[string]bool {
	out := map[string]bool{}
	var walk func(t types.Type)
	walk = func(t types.Type) {
		switch t := t.(type) {
		case *types.Named:
			out[m.at(t.Obj().Pos())] = true
			for i := range t.TypeArgs().Len() {
				walk(t.TypeArgs().At(i))
			}
		case *types.Signature:
			for v := range t.Params().Variables() {
				walk(v.Type())
			}
			for v := range t.Results().Variables() {
				walk(v.Type())
			}
		case interface{ Elem() types.Type }:
			if k, ok := t.(*types.Map); ok {
				walk(k.Key())
			}
			walk(t.Elem())
		case *types.Struct:
			for f := range t.Fields() {
				if f.Exported() {
					walk(f.Type())
				}
			}
		case *types.Interface:
			for f := range t.Methods() {
				if f.Exported() {
					walk(f.Type())
				}
			}
		}
	}
	for more := true; more; {
		before := len(out)
		for _, p := range m.pkgs {
			for _, n := range p.Types.Scope().Names() {
				obj := p.Types.Scope().Lookup(n)
				if at := m.at(obj.Pos()); !used[at] && !out[at] {
					continue
				}
				named, ok := obj.Type().(*types.Named)
				if _, isType := obj.(*types.TypeName); !ok || !isType {
					walk(obj.Type())
					continue
				}
				walk(named.Underlying())
				for f := range named.Methods() {
					if f.Exported() {
						walk(f.Type())
					}
				}
			}
		}
		more = len(out) > before
	}
	return out
}

func kind(o types.Object) string {
	switch o.(type) {
	case *types.Func:
		return "func"
	case *types.TypeName:
		return "type"
	case *types.Const:
		return "const"
	}
	return "var"
}

// rename is one line of the file of renames.
type rename struct{ folder, old, new string }

func read(file string) ([]rename, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []rename
	for s := bufio.NewScanner(f); s.Scan(); {
		w := strings.Fields(s.Text())
		if len(w) == 3 {
			out = append(out, rename{w[0], w[1], w[2]})
		}
	}
	return out, nil
}

// find returns the places where the object of a rename is declared.
func (m *repository) find(r rename) []types.Object {
	var out []types.Object
	for _, p := range m.pkgs {
		if folder(p) != r.folder || strings.HasSuffix(p.PkgPath, ".test") {
			continue
		}
		top, member, ok := strings.Cut(r.old, ".")
		obj := p.Types.Scope().Lookup(top)
		if obj != nil && ok {
			obj, _, _ = types.LookupFieldOrMethod(obj.Type(), true, obj.Pkg(), member)
		}
		if obj != nil {
			out = append(out, origin(obj))
		}
	}
	return out
}

type edit struct {
	file     string
	offset   int
	old, new string
}

func (m *repository) apply(wanted []rename) error {
	to, last := map[string]rename{}, map[string]string{}
	for _, r := range wanted {
		found := m.find(r)
		if len(found) == 0 {
			fmt.Println("not found:", r.folder, r.old)
		}
		for _, o := range found {
			to[m.at(o.Pos())], last[m.at(o.Pos())] = r, o.Name()
		}
	}
	bad := map[string]string{}
	edits := map[edit]string{} // value: the declaration
	m.uses(func(p *packages.Package, id *ast.Ident, obj types.Object) {
		at := m.at(obj.Pos())
		r, ok := to[at]
		if !ok {
			if v, isVar := obj.(*types.Var); isVar && v.Embedded() {
				if n := embedded(v.Type()); n != nil {
					r, ok = to[m.at(n.Pos())]
					at = m.at(n.Pos())
				}
			}
			if !ok {
				return
			}
		}
		if id.Name != last[at] {
			return // a package's dot or another alias
		}
		if why := m.clash(p, id, obj, r.new); why != "" {
			bad[at] = why
		}
		q := m.fset.Position(id.Pos())
		edits[edit{q.Filename, q.Offset, id.Name, r.new}] = at
	})
	for at, why := range bad {
		fmt.Printf("skipped: %s %s -> %s: %s\n", to[at].folder, to[at].old, to[at].new, why)
	}
	files := map[string][]edit{}
	for e, at := range edits {
		if bad[at] == "" {
			files[e.file] = append(files[e.file], e)
		}
	}
	for at := range bad {
		delete(to, at)
	}
	for file, list := range files {
		if err := rewrite(file, list, to); err != nil {
			return err
		}
	}
	return nil
}

func embedded(t types.Type) *types.TypeName {
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	if n, ok := t.(*types.Named); ok {
		return n.Obj()
	}
	return nil
}

// clash says what else the new name would mean where the old one stands.
func (m *repository) clash(p *packages.Package, id *ast.Ident, obj types.Object, new string) string {
	if token.IsKeyword(new) {
		return "a keyword"
	}
	if types.Universe.Lookup(new) != nil {
		return "a predeclared name"
	}
	if obj.Parent() == nil || obj.Pkg() != p.Types || obj.Parent() != p.Types.Scope() {
		return "" // a member, or qualified by a package
	}
	if s := p.Types.Scope().Lookup(new); s != nil {
		return "the package has that name"
	}
	for _, f := range p.Syntax {
		scope := p.TypesInfo.Scopes[f]
		if scope != nil && scope.Lookup(new) != nil {
			return "an import of that name in " + filepath.Base(m.fset.Position(f.Pos()).Filename)
		}
	}
	if in := p.Types.Scope().Innermost(id.Pos()); in != nil {
		if _, o := in.LookupParent(new, id.Pos()); o != nil {
			return "shadowed at " + m.fset.Position(id.Pos()).String()
		}
	}
	return ""
}

// rewrite carries out the edits of one file, and names what it renames in its
// comments too: at the start of a doc comment, and elsewhere if the name is no
// plain word.
func rewrite(file string, list []edit, _ map[string]rename) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	slices.SortFunc(list, func(a, b edit) int { return cmp.Compare(b.offset, a.offset) })
	names := map[string]string{}
	for _, e := range list {
		if !bytes.HasPrefix(text[e.offset:], []byte(e.old)) {
			return fmt.Errorf("%s:%d is not %s", file, e.offset, e.old)
		}
		text = slices.Concat(text[:e.offset], []byte(e.new), text[e.offset+len(e.old):])
		names[e.old] = e.new
	}
	lines := strings.Split(string(text), "\n")
	for i, l := range lines {
		at := comment(l)
		if at < 0 {
			continue
		}
		for old, new := range names {
			head := regexp.MustCompile(`^(\s*// )` + old + `\b`)
			if i+1 < len(lines) && (i == 0 || comment(lines[i-1]) != 0 || !whole(lines[i-1])) && head.MatchString(l) &&
				declares(lines[i:], new) {
				l = head.ReplaceAllString(l, "${1}"+new)
			}
			if camel(old) {
				l = l[:at] + regexp.MustCompile(`\b`+old+`\b`).ReplaceAllString(l[at:], new)
			}
		}
		lines[i] = l
	}
	return os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o644)
}

func whole(l string) bool { return strings.HasPrefix(strings.TrimSpace(l), "//") }

// comment is where a line's comment begins; -1 if it has none.
func comment(l string) int {
	if t := strings.TrimSpace(l); strings.HasPrefix(t, "//") {
		return strings.Index(l, "//")
	}
	return strings.LastIndex(l, " // ")
}

// declares says whether the first line after the comment declares a name.
func declares(lines []string, name string) bool {
	for _, l := range lines {
		if whole(l) {
			continue
		}
		return regexp.MustCompile(`(^|\W)` + name + `\b`).MatchString(l)
	}
	return false
}

// camel says whether a name is more than one plain word.
func camel(s string) bool {
	return strings.ContainsFunc(s[1:], func(r rune) bool { return r >= 'A' && r <= 'Z' })
}
