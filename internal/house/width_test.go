package house

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// widest is how many columns a line of code may have. A tab counts four.
const widest = 140

// TestLinesAreNotWide: no line of Go is wider than that, generated files and
// test data apart.
func TestLinesAreNotWide(t *testing.T) {
	for _, top := range []string{"cmd", "hack", "internal", "runtime", "test"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && d.Name() == "testdata" {
				return filepath.SkipDir
			}
			if err != nil || !strings.HasSuffix(p, ".go") || strings.HasPrefix(d.Name(), "zz_") {
				return err
			}
			text, err := os.ReadFile(p)
			for i, line := range strings.Split(string(text), "\n") {
				if n := len([]rune(strings.ReplaceAll(line, "\t", "    "))); n > widest {
					t.Errorf("%s:%d has %d columns; wrap it at %d", strings.TrimPrefix(p, root+"/"), i+1, n, widest)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
