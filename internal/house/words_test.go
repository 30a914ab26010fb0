package house

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// retired are private words that have a known name, and that name. They may not
// be part of an identifier: a newcomer greps for the words Kubernetes and Linux
// use.
var retired = map[string]string{
	"anew":       "again",
	"authority":  "CA",
	"beaten":     "renewed",
	"furnish":    "install",
	"hurry":      "force-kill",
	"invite":     "publish cluster-info",
	"kick":       "trigger",
	"lean":       "memory",
	"machine":    "host",
	"mended":     "fixed",
	"pains":      "regressions",
	"poke":       "enqueue or trigger",
	"processor":  "CPU",
	"processors": "CPUs",
	"quieter":    "demoting handler",
	"referee":    "invariant checker",
	"spared":     "graceUntil",
	"stir":       "trigger",
	"storm":      "fault-injection test",
	"whoever":    "any client that",
}

// upstreamWords are identifiers of libraries and of the API that have a retired
// word in them.
var upstreamWords = regexp.MustCompile(
	`^(MachineID|machineID|MachineState|CertificateAuthority(Data)?|UnknownAuthorityError|WithSpanProcessor)$`)

// roomsToRename still have retired words. The list only shrinks.
var roomsToRename = []string{}

// TestRetiredWords: identifiers use the field's words.
func TestRetiredWords(t *testing.T) {
	open := map[string]bool{}
	goFiles(t, func(path string, file *ast.File, fset *token.FileSet) {
		if strings.HasPrefix(filepath.Base(path), "zz_") {
			return
		}
		room := ""
		for _, r := range roomsToRename {
			if path == r || strings.HasPrefix(path, r+"/") {
				room = r
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if _, ok := n.(*ast.ImportSpec); ok {
				return false
			}
			id, ok := n.(*ast.Ident)
			if !ok || upstreamWords.MatchString(id.Name) {
				return true
			}
			for _, w := range parts(id.Name) {
				if retired[w] == "" {
					continue
				}
				if room != "" {
					open[room] = true
					continue
				}
				t.Errorf("%s: %s: the word is %q", fset.Position(id.Pos()), id.Name, retired[w])
			}
			return true
		})
	})
	for _, r := range roomsToRename {
		if !open[r] {
			t.Logf("%s has no retired word any more: take it off the list", r)
		}
	}
}

var word = regexp.MustCompile(`[A-Z]?[a-z0-9]+|[A-Z]+`)

// parts are the words of an identifier in camel case, in lower case.
func parts(name string) []string {
	return strings.Split(strings.ToLower(strings.Join(word.FindAllString(name, -1), " ")), " ")
}

// retiredPhrases may not be in documents.
var retiredPhrases = regexp.MustCompile(`(?i)\b(anew|mended|whoever|processors?|pod ranges?|let go of|taken away)\b`)

// TestRetiredWordsInDocuments: documents use the field's words. Test names and
// code are left out.
func TestRetiredWordsInDocuments(t *testing.T) {
	code := regexp.MustCompile("`[^`]*`")
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	decisions, err := filepath.Glob(filepath.Join(root, "docs", "*", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, decisions...)
	for _, name := range []string{"README.md", "CHANGELOG.md", "CONTRIBUTING.md"} {
		pages = append(pages, filepath.Join(root, name))
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			for _, w := range retiredPhrases.FindAllString(code.ReplaceAllString(line, ""), -1) {
				t.Errorf("%s:%d: %q is no word of the field; see CONTRIBUTING.md", filepath.Base(page), i+1, w)
			}
		}
	}
}

// flagCall is a method that declares a flag of the command line.
var flagCall = regexp.MustCompile(
	`^(Bool|String|Int|Int32|Int64|Uint|Float32|Float64|Duration|StringSlice|StringArray|StringToString|Text|Func)?Var(P)?$`)

// TestRetiredWordsInFlags: names and help texts of flags use the field's words.
func TestRetiredWordsInFlags(t *testing.T) {
	flags := 0
	goFiles(t, func(path string, file *ast.File, fset *token.FileSet) {
		if !strings.HasPrefix(path, "internal/") || strings.HasSuffix(path, "_test.go") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) < 3 {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !flagCall.MatchString(method.Sel.Name) {
				return true
			}
			name, ok := call.Args[1].(*ast.BasicLit)
			if !ok || name.Kind != token.STRING {
				return true
			}
			flags++
			for _, w := range strings.Split(strings.Trim(name.Value, `"`), "-") {
				if retired[w] != "" {
					t.Errorf("%s: flag --%s: the word is %q", fset.Position(name.Pos()), name.Value, retired[w])
				}
			}
			ast.Inspect(call.Args[len(call.Args)-1], func(n ast.Node) bool {
				if help, ok := n.(*ast.BasicLit); ok {
					for _, w := range retiredPhrases.FindAllString(help.Value, -1) {
						t.Errorf("%s: %q is no word of the field", fset.Position(help.Pos()), w)
					}
				}
				return true
			})
			return true
		})
	})
	if flags < 100 {
		t.Errorf("only %d flags were found: the rule looks at nothing", flags)
	}
}
