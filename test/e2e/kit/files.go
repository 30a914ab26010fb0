package kit

import (
	"os"
	"path/filepath"
	"testing"
)

// WriteFile writes a file and makes its directory.
func WriteFile(t *testing.T, file, content string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}

// AgentConfig writes a KubeletConfiguration with further fields.
func AgentConfig(t *testing.T, fields string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "agent.yaml")
	text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" + fields
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Subset is the part of a map that another map has keys for.
func Subset(of, keys map[string]int) map[string]int {
	out := map[string]int{}
	for k := range keys {
		if v, ok := of[k]; ok {
			out[k] = v
		}
	}
	return out
}

// Must fails the test on an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
