package containerd

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/cluster/host"
)

func TestChooseOCIRuntimeTriesAndRemembers(t *testing.T) {
	bundle(t)
	dir := t.TempDir()
	t.Cleanup(func() {
		if err := host.RemoveCgroup("/sys/fs/cgroup", "/berth-test-trial"); err != nil {
			t.Error(err)
		}
	})
	// A runtime that is present but does not work here must be passed over.
	broken := filepath.Join(dir, "crun")
	if err := os.WriteFile(broken, []byte("#!/bin/sh\necho counted >> "+dir+"/calls\necho unknown cgroup mode >&2\nexit 1\n"),
		0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	memo := filepath.Join(dir, "memo")
	tried := func() int {
		got, all, err := ChooseOCIRuntime(context.Background(), memo, "/berth-test-trial", "boot-1")
		if err != nil || got.Name != "runc" || len(all) != 2 || !strings.Contains(all[0].Err, "unknown cgroup mode") {
			t.Fatal(got, all, err)
		}
		calls, _ := os.ReadFile(filepath.Join(dir, "calls"))
		return strings.Count(string(calls), "counted")
	}
	// Once with a seccomp profile, and once without.
	first := tried()
	if again := tried(); first != 2 || again != first {
		t.Fatalf("crun was tried %d times, then %d; the second answer must come from memory", first, again)
	}
	t.Setenv("PATH", dir)
	os.Remove(broken)
	Candidates = []string{"no-such-runtime"}
	defer func() { Candidates = []string{"crun", "runc"} }()
	if _, _, err := ChooseOCIRuntime(context.Background(), filepath.Join(dir, "memo2"), "/berth-test-trial", "boot-1"); err == nil ||
		!strings.Contains(err.Error(), "install runc") {
		t.Fatal(err)
	}
}
