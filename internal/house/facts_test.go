package house

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w*)\(`)
	proof    = regexp.MustCompile("`((?:Test|Fuzz)[^`]*)`")
)

// TestPromisesNameTheirProof: every row of the tables of promises names tests
// that exist, or says that and why there is none.
func TestPromisesNameTheirProof(t *testing.T) {
	tests := testsOf(t, "../agent", "../cluster", "../control/api/validate", "../control/admit", "../control/workload", "../../test/e2e")
	for page, rows := range map[string]int{"agent-facts.md": 80, "conformance-node.md": 60} {
		t.Run(page, func(t *testing.T) { checkPage(t, "../../docs/"+page, rows, tests) })
	}
}

// checkPage checks each row of a page that should have at least so many.
func checkPage(t *testing.T, page string, least int, tests map[string]string) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, line := range strings.Split(string(text), "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| what ") || strings.HasPrefix(line, "| upstream ") {
			continue
		}
		rows++
		if strings.HasPrefix(cells[0], "not: ") {
			continue
		}
		found := proof.FindAllStringSubmatch(line, -1)
		if len(found) == 0 {
			t.Errorf("no proof: %s", line)
		}
		for _, f := range found {
			if why := missing(f[1], tests); why != "" {
				t.Errorf("%s: %s", f[1], why)
			}
		}
	}
	if rows < least {
		t.Errorf("the table has %d rows", rows)
	}
}

// testsOf maps the names of the tests below some folders to the text of the
// files that hold them.
func testsOf(t *testing.T, folders ...string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, folder := range folders {
		err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range testFunc.FindAllStringSubmatch(string(text), -1) {
				out[m[1]] += string(text)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

var suites = map[string][]string{
	"TestPodFeatures":  {"node/testdata/pods.yaml", "node/podsteps_test.go"},
	"TestNodeSuite":    {"node/testdata/nodesuite.yaml", "node/nodesuite_*_test.go", "node/nodesuite_test.go"},
	"TestStorageSuite": {"storage/storagesuite_*_test.go", "storage/storagesuite_test.go"},
}

// missing says what of a proof is not there: the test, or its part.
func missing(name string, tests map[string]string) string {
	test, part, parted := strings.Cut(name, "/")
	text, ok := tests[test]
	if !ok {
		return "there is no such test"
	}
	if !parted {
		return ""
	}
	switch test {
	case "TestTranscripts":
		for _, pattern := range []string{"../agent/*/testdata/" + part + ".txt", "../agent/*/testdata/" + part + ".yaml"} {
			if found, _ := filepath.Glob(pattern); len(found) > 0 {
				return ""
			}
		}
		return "there is no such transcript"
	}
	// Suites whose subtests are in several files, and pods of a table.
	if globs, ok := suites[test]; ok {
		for _, glob := range globs {
			files, _ := filepath.Glob("../../test/e2e/" + glob)
			for _, file := range files {
				b, err := os.ReadFile(file)
				if s := string(b); err == nil && (strings.Contains(s, "{name: "+part+",") || strings.Contains(s, `{"`+part+`"`) ||
					strings.Contains(s, `ame: "`+part+`"`)) {
					return ""
				}
			}
		}
		return "there is no such pod or step"
	}
	if !strings.Contains(text, `"`+part+`"`) {
		return "the test has no such part"
	}
	return ""
}
