package berthtest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestAction runs the steps of the CI action as a runner does.
func TestAction(t *testing.T) {
	needsBerth(t)
	if os.Geteuid() != 0 {
		t.Skip("a whole cluster needs root")
	}
	text, err := os.ReadFile("../action/action.yml")
	if err != nil {
		t.Fatal(err)
	}
	var action struct {
		Runs struct {
			Steps []struct {
				Name, Run string
				Env       map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(text, &action); err != nil {
		t.Fatal(err)
	}
	// The action finds berth beside itself, a runner has sudo, and each step
	// writes to files that the runner reads.
	dir := t.TempDir()
	for _, sub := range []string{"action", "path"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(os.Getenv("BERTH_BIN"), filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "path", "sudo"), []byte("#!/bin/sh\nexec \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	runner := append(os.Environ(), "GITHUB_ACTION_PATH="+dir+"/action", "GITHUB_PATH="+dir+"/p", "GITHUB_ENV="+dir+"/e",
		"GITHUB_OUTPUT="+dir+"/o", "RUNNER_TEMP="+dir, "PATH="+dir+"/path:"+os.Getenv("PATH"), "NAME=action-test",
		"FLAGS=--log-level=debug")
	t.Cleanup(func() {
		if out, err := exec.Command(dir+"/bin/berth", "delete", "action-test").CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	for _, s := range action.Runs.Steps {
		cmd := exec.CommandContext(t.Context(), "bash", "-eo", "pipefail", "-c", s.Run)
		cmd.Env = runner
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("step %q: %v: %s", s.Name, err, out)
		}
	}
	env, err := os.ReadFile(dir + "/e")
	if err != nil {
		t.Fatal(err)
	}
	_, config, _ := strings.Cut(strings.TrimSpace(string(env)), "KUBECONFIG=")
	get := exec.CommandContext(t.Context(), dir+"/bin/berth", "kubectl", "get", "nodes", "-o", "name")
	get.Env = append(os.Environ(), "KUBECONFIG="+config)
	if out, err := get.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "node/") {
		t.Errorf("kubectl with the action's KUBECONFIG: %v: %s", err, out)
	}
	if st, err := os.Stat(config); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the kubeconfig: %v, %v", st, err)
	}
}

// BenchmarkAPIOnly is how long a test waits for an API server of its own.
func BenchmarkAPIOnly(b *testing.B) {
	for b.Loop() {
		benchStart(b)
	}
}
