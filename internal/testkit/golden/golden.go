// Package golden compares what a test made with a file that was read and
// accepted before.
package golden

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the expected outputs again; read the difference before committing it")

// Check compares got with the file; with -rewrite it writes the file.
func Check(t testing.TB, file, got string) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (-rewrite writes it again) from %s", file, difference(string(want), got))
	}
}

// shown is how many lines of a difference are shown.
const shown = 12

// difference shows two texts from the first line on in which they differ.
func difference(want, got string) string {
	a, b := strings.SplitAfter(want, "\n"), strings.SplitAfter(got, "\n")
	i := 0
	for i < min(len(a), len(b)) && a[i] == b[i] {
		i++
	}
	part := func(lines []string) string { return strings.Join(lines[i:min(i+shown, len(lines))], "") }
	return fmt.Sprintf("line %d on\nwant:\n%s\ngot:\n%s", i+1, part(a), part(b))
}
