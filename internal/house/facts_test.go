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

// TestPromisesNameTheirProof: every row of the table of promises names tests
// that exist, or says that and why there is none.
func TestPromisesNameTheirProof(t *testing.T) {
	text, err := os.ReadFile("../../docs/agent-facts.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := testsOf(t, "../agent", "../cluster", "../control/api/validate", "../../test/e2e")
	rows := 0
	for _, line := range strings.Split(string(text), "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| what ") {
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
	if rows < 80 {
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
	case "TestPodFeatures":
		for _, file := range []string{"../../test/e2e/testdata/pods.yaml", "../../test/e2e/podsteps_test.go"} {
			b, err := os.ReadFile(file)
			if err == nil && (strings.Contains(string(b), "{name: "+part+",") || strings.Contains(string(b), `{"`+part+`"`)) {
				return ""
			}
		}
		return "there is no such pod or step"
	}
	if !strings.Contains(text, `"`+part+`"`) {
		return "the test has no such part"
	}
	return ""
}
