package house

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// testKit are packages made for tests; testEdge is what they import among
// themselves, which follows from the first import.
var testKit = regexp.MustCompile(
	`(^|/)(fake|fakes|testing|testutil|promlint|httptest|iotest|testify|ginkgo|gomega|envtest|internal/testkit|internal/house)(/|$)`)

// linkedAnyway are the imports of test kits that production links because a
// library does, and why they stay. Each is the first step out of production.
var linkedAnyway = map[string]string{
	"k8s.io/apiserver/pkg/admission/plugin/policy/generic k8s.io/client-go/dynamic/fake": "the library keeps the kit for tests of its " +
		"own plugins beside " +
		"the sources of policies that ValidatingAdmissionPolicy and MutatingAdmissionPolicy are made of; their constructors take no other",
	"k8s.io/apiserver/pkg/admission/plugin/policy/generic k8s.io/client-go/kubernetes/fake": "as above",
	"k8s.io/apiserver/pkg/admission/plugin/policy/generic k8s.io/client-go/testing":         "as above",
	"k8s.io/client-go/gentype k8s.io/client-go/testing": "the base of all typed clients holds that " +
		"of their fakes",
	"k8s.io/apiserver/pkg/util/flowcontrol/metrics k8s.io/component-base/metrics/testutil": "priority and fairness offers its tests a " +
		"way to read its metrics",
}

// TestProductionLinksNoTestKit: a fake clientset or a test kit in the program is
// size and surface without use. What is linked through a library is listed with
// its reason, and an entry that is no longer needed goes.
func TestProductionLinksNoTestKit(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "-f", `{{$p := .ImportPath}}{{range .Imports}}{{$p}} {{.}}{{"\n"}}{{end}}`, "./cmd/berth")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("listing what the program links: %v", err)
	}
	used := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		edge := strings.TrimSpace(line)
		from, to, ok := strings.Cut(edge, " ")
		if !ok || testKit.MatchString(from) || !testKit.MatchString(to) {
			continue
		}
		if _, known := linkedAnyway[edge]; !known {
			t.Errorf("%s links %s into the program, which is made for tests", from, to)
		}
		used[edge] = true
	}
	for edge := range linkedAnyway {
		if !used[edge] {
			t.Errorf("%s: no longer linked; remove the entry", edge)
		}
	}
}
