package sim

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the expected outputs beside the scenarios anew; read the difference before committing it")

// TestExamples plays every scenario under examples and compares everything it
// says with what is kept beside it.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../../examples/scenarios/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			sc, err := Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			r, err := Run(t.Context(), sc)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if err := Text(&got, []*Result{r}); err != nil {
				t.Fatal(err)
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".txt"
			if *rewrite {
				if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != string(want) {
				t.Errorf("%s says\n%s\nexpected\n%s", file, got.String(), want)
			}
		})
	}
}
