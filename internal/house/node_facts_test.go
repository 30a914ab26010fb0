package house

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestNodePromisesNameTheirProof: every row of docs/node-facts.md names tests
// that exist, or begins with "not:".
func TestNodePromisesNameTheirProof(t *testing.T) {
	declared := regexp.MustCompile(`(?m)^func (Test\w*)\(`)
	have := map[string]bool{}
	for _, top := range []string{"internal", "test"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
				have[m[1]] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(root, "docs/node-facts.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(Test[^`]*)`")
	rows := 0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| what ") {
			continue
		}
		rows++
		proofs := named.FindAllStringSubmatch(line, -1)
		if len(proofs) == 0 && !strings.HasPrefix(line, "| not: ") {
			t.Errorf("no proof: %s", line)
		}
		for _, m := range proofs {
			if name, _, _ := strings.Cut(m[1], "/"); !have[name] {
				t.Errorf("%s is no test: %s", m[1], line)
			}
		}
	}
	if rows < 80 {
		t.Errorf("the table has %d rows", rows)
	}
}
