package house

import (
	"go/ast"
	"go/token"
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
var roomsToRename = []string{
	"internal/agent/agent.go", "internal/agent/base.go", "internal/agent/pods.go", "internal/agent/storage.go", "internal/agent/upkeep.go",
	"internal/agent/wire.go", "internal/agent/agent_test.go", "internal/agent/device", "internal/agent/node", "internal/agent/pressure",
	"internal/agent/resource", "internal/proxy/launch", "internal/agent/launch", "internal/cli",
	"internal/cluster", "internal/control/api", "internal/control/admit", "internal/control/auth", "internal/control/workload",
	"internal/nodes", "internal/pki", "runtime", "test",
}

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
