// Package house holds the rules of this repository as tests, so that a rule is
// broken with a message and not in a review.
package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/berth-dev/berth/"

// root is the repository, seen from this package.
const root = "../.."

// pure are the places where decisions are made: packages (folders) and single
// files of packages that also have a shell. They may not know the time, a
// client or a goroutine.
var pure = []string{
	"internal/agent/device/ledger.go",
	"internal/agent/device/want.go",
	"internal/agent/dra/ledger.go",
	"internal/agent/resource/cpus",
	"internal/agent/resource/memory",
	"internal/agent/resource/topology",
	"internal/agent/node/cadence.go",
	"internal/agent/node/capacity.go",
	"internal/agent/node/conditions.go",
	"internal/agent/node/identity.go",
	"internal/agent/node/patch.go",
	"internal/agent/node/reconcile.go",
	"internal/agent/node/status.go",
	"internal/agent/pressure/core.go",
	"internal/agent/pressure/garbage.go",
	"internal/agent/pressure/local.go",
	"internal/agent/pressure/rank.go",
	"internal/agent/pressure/signals.go",
	"internal/agent/shutdown/plan.go",
	"internal/agent/volume/podcertstate.go",
	"internal/agent/admit",
	"internal/agent/container",
	"internal/agent/pod/plan.go",
	"internal/agent/pod/phase.go",
	"internal/agent/pod/status.go",
	"internal/agent/pod/terminate.go",
	"internal/agent/pod/backoff.go",
	"internal/agent/pod/restartall.go",
	"internal/agent/pod/start.go",
	"internal/control/api/defaults",
	"internal/control/api/validate",
	"internal/cluster/hostcheck/judge.go",
	"internal/clustermodel",
	"internal/control/schedule/place",
	"internal/dns/answer.go",
	"internal/dns/cache.go",
	"internal/dns/records.go",
	"internal/install/plan.go",
	"internal/manifests/hash.go",
	"internal/manifests/parse.go",
	"internal/manifests/plan.go",
	"internal/network/plan.go",
	"internal/network/wireguard_plan.go",
	"internal/nodes/cloud/plan.go",
	"internal/nodes/cloud/inventory/inventory.go",
	"internal/nodes/eviction/plan.go",
	"internal/nodes/health/advance.go",
	"internal/nodes/health/decision.go",
	"internal/nodes/health/explain.go",
	"internal/nodes/health/lifecycle.go",
	"internal/nodes/health/monitor.go",
	"internal/nodes/health/plan.go",
	"internal/nodes/health/start.go",
	"internal/nodes/health/taints.go",
	"internal/nodes/health/timers.go",
	"internal/nodes/health/tokens.go",
	"internal/nodes/health/view.go",
	"internal/nodes/health/zone.go",
	"internal/nodes/ipam/pool.go",
	"internal/nodes/podgc/plan.go",
	"internal/nodes/route/plan.go",
	"internal/nodes/ttl/plan.go",
	"internal/sim",
	"internal/policy/model",
	"internal/policy/oracle",
	"internal/proxy/model",
	"internal/why",
	"internal/ui/view",
	"internal/snapshot/header.go",
	"internal/snapshot/plan.go",
	"internal/snapshot/retention.go",
	"internal/snapshot/schedule.go",
}

// impureFiles are shells that live in a pure folder, with the reason.
var impureFiles = map[string]string{
	"internal/control/api/validate/expressions.go": "keeps compiled CEL environments, made once",
	"internal/why/ask/ask.go":                      "performs the requests; what to read and what it means is pure",
	"internal/agent/container/resolve.go":          "fetches config maps and secrets; everything else there is pure",
}

// forbiddenCalls read clocks or start work.
var forbiddenCalls = map[string]bool{
	"time.Now": true, "time.After": true, "time.Sleep": true, "time.NewTimer": true, "time.Tick": true, "time.NewTicker": true,
	"time.Since": true, "time.Until": true, "time.AfterFunc": true,
}

// forbiddenImports of pure code.
var forbiddenImports = []string{"k8s.io/client-go/", "google.golang.org/grpc", "net/http", "os/exec", "github.com/vishvananda/netlink",
	"github.com/google/nftables", "sync"}

// sources are all Go files of the repository's packages, read once.
var sources struct {
	once  sync.Once
	fset  *token.FileSet
	paths []string
	files []*ast.File
	err   error
}

// goFiles calls f for every Go source of the repository's packages.
func goFiles(t *testing.T, f func(path string, file *ast.File, fset *token.FileSet)) {
	t.Helper()
	sources.once.Do(readSources)
	if sources.err != nil {
		t.Fatal(sources.err)
	}
	for i, file := range sources.files {
		f(sources.paths[i], file, sources.fset)
	}
}

func readSources() {
	sources.fset = token.NewFileSet()
	for _, top := range []string{"cmd", "internal", "test", "runtime"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(p, ".go") {
				return err
			}
			file, err := parser.ParseFile(sources.fset, p, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(root, p)
			if err != nil {
				return err
			}
			sources.paths, sources.files = append(sources.paths, filepath.ToSlash(rel)), append(sources.files, file)
			return nil
		})
		if err != nil && !os.IsNotExist(err) {
			sources.err = err
		}
	}
}

func TestNobodyImportsKubernetesItself(t *testing.T) {
	goFiles(t, func(path string, file *ast.File, _ *token.FileSet) {
		for _, imp := range file.Imports {
			name, _ := strconv.Unquote(imp.Path.Value)
			if name == "k8s.io/kubernetes" || strings.HasPrefix(name, "k8s.io/kubernetes/") {
				t.Errorf("%s imports %s: it is not a library, its job is ours", path, name)
			}
		}
	})
	for _, mod := range []string{"go.mod", "runtime/go.mod"} {
		data, err := os.ReadFile(filepath.Join(root, mod))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), "\tk8s.io/kubernetes ") {
			t.Errorf("%s requires k8s.io/kubernetes", mod)
		}
	}
}

// TestOneNftablesRoom: the library encodes expressions; who has rules gives them
// to internal/nft.
func TestOneNftablesRoom(t *testing.T) {
	goFiles(t, func(path string, file *ast.File, _ *token.FileSet) {
		for _, imp := range file.Imports {
			if imp.Path.Value == `"github.com/google/nftables"` {
				t.Errorf("%s imports google/nftables: changes of tables are made by internal/nft", path)
			}
		}
	})
}

func TestEveryPackageSaysItsOneJob(t *testing.T) {
	documented := map[string]bool{}
	seen := map[string]string{}
	goFiles(t, func(path string, file *ast.File, _ *token.FileSet) {
		dir := filepath.Dir(path)
		if strings.HasSuffix(path, "_test.go") && strings.HasSuffix(file.Name.Name, "_test") {
			return
		}
		seen[dir] = file.Name.Name
		if file.Doc == nil {
			return
		}
		text := file.Doc.Text()
		if strings.HasPrefix(text, "Package "+file.Name.Name+" ") || file.Name.Name == "main" && strings.HasPrefix(text, "Command ") {
			documented[dir] = true
		}
	})
	for dir, name := range seen {
		if !documented[dir] && name != "main" {
			t.Errorf("package %s (%s) has no comment that starts with \"Package %s\"", name, dir, name)
		}
	}
}

func TestPureCodeKnowsNoClockClientOrGoroutine(t *testing.T) {
	matched := map[string]bool{}
	goFiles(t, func(path string, file *ast.File, fset *token.FileSet) {
		if strings.HasSuffix(path, "_test.go") || impureFiles[path] != "" {
			return
		}
		rule := ""
		for _, p := range pure {
			if path == p || strings.HasPrefix(path, p+"/") {
				rule = p
			}
		}
		if rule == "" {
			return
		}
		matched[rule] = true
		for _, imp := range file.Imports {
			name, _ := strconv.Unquote(imp.Path.Value)
			for _, bad := range forbiddenImports {
				if name == bad || strings.HasSuffix(bad, "/") && strings.HasPrefix(name, bad) {
					t.Errorf("%s is pure code but imports %s", path, name)
				}
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: pure code starts a goroutine", fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && forbiddenCalls[x.Name+"."+n.Sel.Name] {
					t.Errorf("%s: pure code uses %s.%s: take the time as a parameter", fset.Position(n.Pos()), x.Name, n.Sel.Name)
				}
			}
			return true
		})
	})
	for _, p := range pure {
		if !matched[p] {
			t.Errorf("the list of pure code names %s, which is not there", p)
		}
	}
}
