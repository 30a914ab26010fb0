package cli

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestRefusedImageCommands names the flag or file and what is allowed.
func TestRefusedImageCommands(t *testing.T) {
	t.Setenv("BERTH_DATA_DIR", t.TempDir())
	for line, want := range map[string]string{
		"image load":                        "requires at least 1 arg",
		"image load a b --name x":           "--name",
		"image load - - --all-nodes":        "given twice",
		"image load a --node n --all-nodes": "node",
		"image load a":                      "no container runtime runs on",
		"image ls -o yaml":                  "text and json",
		"image ls --all-nodes":              "--kubeconfig",
		"image rm":                          "requires at least 1 arg",
		"image prune now":                   "unknown command",
	} {
		out, err := try(t, strings.Fields(line)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: nothing of %q in %v\n%s", line, want, err, out)
		}
	}
}

// TestKeepStdin: standard input is copied for several nodes only, and the copy goes.
func TestKeepStdin(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	files, done, err := keepStdin(strings.NewReader("archive"), []string{"a", "-"}, false)
	if err != nil || !slices.Equal(files, []string{"a", "-"}) {
		t.Error(files, err)
	}
	done()
	in := strings.NewReader("archive")
	files, done, err = keepStdin(in, []string{"a", "-"}, true)
	if err != nil || files[0] != "a" || in.Len() != 0 {
		t.Fatal(files, err)
	}
	f, err := os.Open(files[1])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if text, err := io.ReadAll(f); err != nil || string(text) != "archive" {
		t.Error(text, err)
	}
	done()
	if left, err := filepath.Glob(os.Getenv("TMPDIR") + "/*"); err != nil || len(left) != 0 {
		t.Error(left, err)
	}
}
