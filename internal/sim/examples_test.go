package sim

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/testkit/golden"
)

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
			golden.Check(t, strings.TrimSuffix(file, ".yaml")+".txt", got.String())
		})
	}
}
