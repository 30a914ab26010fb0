package cluster

import (
	"os"
	"path/filepath"
	"testing"
)

// TestOnlyOurs guards the rule that decides whether a failed start may empty
// a directory without settings.
func TestOnlyOurs(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files []string
		want  bool
	}{
		{"empty", nil, true},
		{"a start that got as far as the lock", []string{"lock", "logs", "run"}, true},
		{"interrupted writing of the settings", []string{"lock", "logs", "cluster.json.new"}, true},
		{"a fresh filesystem", []string{"lost+found"}, true},
		{"somebody's home", []string{"thesis.txt"}, false},
		{"somebody's project with logs", []string{"logs", "src"}, false},
		{"certificates that were put there first", []string{"pki"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, f := range tt.files {
				if err := os.WriteFile(filepath.Join(dir, f), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := onlyOurs(dir); got != tt.want {
				t.Errorf("onlyOurs(%v) = %v, want %v", tt.files, got, tt.want)
			}
		})
	}
	if !onlyOurs(filepath.Join(t.TempDir(), "none")) {
		t.Error("a directory that does not exist holds nobody's files")
	}
}
