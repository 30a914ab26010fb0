package house

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// floors are all rooms of the house, top first: a package may import what stands
// on a lower floor. Rooms of one floor stand side by side; roles (control, nodes,
// agent, proxy, ...) meet in internal/cluster only.
var floors = [][]string{
	{"cmd"},
	{"internal/cli"},
	{"internal/cluster", "internal/fleet", "internal/sim"},
	{"internal/clustermodel"},
	{"internal/control", "internal/nodes", "internal/agent", "internal/proxy", "internal/network", "internal/policy", "internal/dns"},
	{"internal/localvolume"},
	{"internal/controller"},
	{"internal/nft", "internal/kube", "internal/why", "internal/images"},
	{"internal/heap", "internal/journal", "internal/logfile", "internal/memory", "internal/pki", "internal/podutil", "internal/snapshot",
		"internal/socket", "internal/strict", "internal/supervise", "internal/registries"},
}

// agentFloors are the same inside the agent. Above all is launch, the only room
// that may know the agent's root; a pod's way from its source to its containers
// goes through these rooms and never back up.
var agentFloors = [][]string{
	{"internal/agent/launch"},
	{"internal/agent"},
	{"internal/agent/start", "internal/agent/admission"},
	{"internal/agent/admit", "internal/agent/pressure", "internal/agent/resource/enforce", "internal/agent/resource/assign"},
	{"internal/agent/node", "internal/agent/dra", "internal/agent/device", "internal/agent/shutdown", "internal/agent/probe",
		"internal/agent/source", "internal/agent/telemetry"},
	{"internal/agent/pod", "internal/agent/userns", "internal/agent/volume", "internal/agent/podresources"},
	{"internal/agent/config", "internal/agent/resource/checkpoint"},
	{"internal/agent/container", "internal/agent/stats", "internal/agent/resource/cpus", "internal/agent/resource/memory",
		"internal/agent/serve"},
	{"internal/agent/runtime", "internal/agent/resource", "internal/agent/network", "internal/agent/resource/topology",
		"internal/agent/serve/logs",
		"internal/agent/image", "internal/agent/logs", "internal/agent/plugins", "internal/agent/reach", "internal/agent/certs"},
}

// unbound may be imported by tests alone, and import anything.
var unbound = []string{"internal/house", "internal/testkit"}

// floorOf is the room of a package, the most exact one, and its floor; -1 if it
// has none.
func floorOf(list [][]string, dir string) (room string, floor int) {
	floor = -1
	for i, rooms := range list {
		for _, r := range rooms {
			if (dir == r || strings.HasPrefix(dir, r+"/")) && len(r) > len(room) {
				room, floor = r, i
			}
		}
	}
	return room, floor
}

// checkFloors complains of imports among the packages below top that do not
// point down.
func checkFloors(t *testing.T, list [][]string, top string) {
	t.Helper()
	goFiles(t, func(path string, file *ast.File, _ *token.FileSet) {
		if strings.HasSuffix(path, "_test.go") || !strings.HasPrefix(path, top) {
			return
		}
		room, from := floorOf(list, filepath.Dir(path))
		if from < 0 {
			return // TestEveryRoomHasAFloor speaks of it
		}
		for _, imp := range file.Imports {
			name, _ := strconv.Unquote(imp.Path.Value)
			to, ours := strings.CutPrefix(name, module)
			if !ours || !strings.HasPrefix(to, top) {
				continue
			}
			if other, floor := floorOf(list, to); floor >= 0 && other != room && floor <= from {
				t.Errorf("%s imports %s: %s stands no lower than %s; arrows point down only (floors in internal/house/layers_test.go)",
					path, name, other, room)
			}
		}
	})
}

func TestArrowsPointDown(t *testing.T)           { checkFloors(t, floors, "") }
func TestArrowsInTheAgentPointDown(t *testing.T) { checkFloors(t, agentFloors, "internal/agent/") }

// TestEveryRoomHasAFloor keeps the lists complete, and free of rooms that are
// gone.
func TestEveryRoomHasAFloor(t *testing.T) {
	for _, l := range []struct {
		top   string
		rooms [][]string
	}{{"internal", floors}, {"internal/agent", agentFloors}} {
		entries, err := os.ReadDir(filepath.Join(root, l.top))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			dir := l.top + "/" + e.Name()
			if _, floor := floorOf(l.rooms, dir); e.IsDir() && (floor < 0 || l.top == "internal/agent" && !listed(l.rooms, dir)) &&
				!slices.Contains(unbound, dir) {
				t.Errorf("%s has no floor: give it one in internal/house/layers_test.go", dir)
			}
		}
	}
}

func listed(list [][]string, dir string) bool {
	return slices.ContainsFunc(list, func(rooms []string) bool { return slices.Contains(rooms, dir) })
}

// configBuilders may build the agent's configuration: two of them drifted once,
// and users of one had fewer features than those of the other.
var configBuilders = []string{"internal/agent/launch"}

func TestOneRoomBuildsTheAgentsConfig(t *testing.T) {
	goFiles(t, func(path string, file *ast.File, fset *token.FileSet) {
		if strings.HasSuffix(path, "_test.go") || slices.Contains(configBuilders, filepath.Dir(path)) {
			return
		}
		known := slices.ContainsFunc(file.Imports,
			func(imp *ast.ImportSpec) bool { return imp.Path.Value == strconv.Quote(module+"internal/agent") })
		ast.Inspect(file, func(n ast.Node) bool {
			lit, ok := n.(*ast.CompositeLit)
			if !ok || !known {
				return true
			}
			sel, ok := lit.Type.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "Config" || len(lit.Elts) == 0 {
				return true // an empty one is what an error comes with
			}
			if name, ok := sel.X.(*ast.Ident); ok && name.Name == "agent" {
				t.Errorf("%s builds an agent.Config: only internal/agent/launch does that", fset.Position(lit.Pos()))
			}
			return true
		})
	})
}

// TestTheAgentsRootOnlyWires holds the root to what it is: no type there has
// many methods, no struct is wide, and it does not grow.
func TestTheAgentsRootOnlyWires(t *testing.T) {
	const maxMethods, maxLines = 10, 900
	methods, lines := map[string]int{}, 0
	goFiles(t, func(path string, file *ast.File, fset *token.FileSet) {
		if filepath.Dir(path) != "internal/agent" || strings.HasSuffix(path, "_test.go") {
			return
		}
		lines += fset.File(file.Pos()).LineCount()
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil {
				methods[receiver(f)]++
			}
		}
	})
	for name, n := range methods {
		if n > maxMethods {
			t.Errorf("%s has %d methods in the agent's root, allowed are %d: give its work a room of its own", name, n, maxMethods)
		}
	}
	if lines == 0 || lines > maxLines {
		t.Errorf("the agent's root has %d lines, allowed are %d: it only wires", lines, maxLines)
	}
}

func receiver(f *ast.FuncDecl) string {
	typ := f.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if name, ok := typ.(*ast.Ident); ok {
		return name.Name
	}
	return ""
}
