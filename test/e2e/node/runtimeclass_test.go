package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestRuntimeClasses gives the bundled containerd a second runtime by a file,
// runs a pod with it through the class that berth offers, and checks that a
// class that a user removed stays away. The second runtime is this host's own
// behind a program that writes down that it was called.
func TestRuntimeClasses(t *testing.T) {
	dir := t.TempDir()
	calls, second := filepath.Join(dir, "calls"), filepath.Join(dir, "second")
	fragments := filepath.Join(dir, "containerd.d")
	if err := os.Mkdir(fragments, 0o755); err != nil {
		t.Fatal(err)
	}
	put := func(file, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	c := kit.NewCluster(t, "--containerd-config-dir="+fragments)
	runc, err := kit.ContainerdRuntime(t)
	if err != nil {
		t.Skipf("no OCI runtime works on this host: %v", err)
	}
	put(second, fmt.Sprintf("#!/bin/sh\necho \"$@\" >> %s\nexec %s \"$@\"\n", calls, runc), 0o755)
	fragment := filepath.Join(fragments, "second.toml")
	put(fragment, "[plugins]\n", 0o644)
	if out, err := c.TryUp(); err == nil || !strings.Contains(out, "second.toml has no version") {
		t.Fatalf("a file of no version: %v\n%s", err, out)
	}
	put(fragment, fmt.Sprintf(`version = 3
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.second]
  runtime_type = 'io.containerd.runc.v2'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.second.options]
    BinaryName = %q
    SystemdCgroup = false
`, second), 0o644)
	c.Up()
	class := func() error {
		_, err := c.Client.NodeV1().RuntimeClasses().Get(context.Background(), "second", metav1.GetOptions{})
		return err
	}
	c.Eventually("RuntimeClass second", func() (bool, string) { err := class(); return err == nil, fmt.Sprint(err) })
	imagePod(c, "usual", "berth.dev/toolbox:1", "Never", "")
	c.WaitReady("default", "app=usual", 1)
	// containerd asks each runtime for its features.
	if text, err := os.ReadFile(calls); err == nil && strings.Contains(string(text), "create") {
		t.Errorf("a pod without a class ran with the second runtime: %s", text)
	}
	imagePod(c, "second", "berth.dev/toolbox:1", "Never", "runtimeClassName: second,")
	c.WaitReady("default", "app=second", 1)
	if text, err := os.ReadFile(calls); err != nil || !strings.Contains(string(text), "create") {
		t.Errorf("the second runtime made no container: %v %s", err, text)
	}

	// What a user removes stays away, and the pod of the other file's change goes on.
	c.Kubectl("delete", "runtimeclass", "second")
	before := c.RuntimePID()
	c.Disconnect()
	c.Down()
	put(filepath.Join(fragments, "level.toml"), "version = 3\n[debug]\n  level = 'info'\n", 0o644)
	c.Up()
	if c.RuntimePID() == before {
		t.Error("a new file did not start containerd again")
	}
	// The controller has looked at this node once the class of a third handler is there.
	put(filepath.Join(fragments, "third.toml"), fmt.Sprintf(`version = 3
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.third]
  runtime_type = 'io.containerd.runc.v2'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.third.options]
    BinaryName = %q
`, second), 0o644)
	c.Disconnect()
	c.Down()
	c.Up()
	c.Eventually("RuntimeClass third", func() (bool, string) {
		_, err := c.Client.NodeV1().RuntimeClasses().Get(context.Background(), "third", metav1.GetOptions{})
		return err == nil, fmt.Sprint(err)
	})
	if err := class(); !apierrors.IsNotFound(err) {
		t.Errorf("the class that was removed came back: %v", err)
	}
}
