package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berth-dev/berth/internal/control/store"
)

// open starts the store of a data directory.
func open(t *testing.T, dataDir string) *store.Store {
	t.Helper()
	s, err := store.Start(t.Context(), store.Config{DataDir: filepath.Join(dataDir, "etcd")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// cluster makes a data directory with a real store that holds k=v.
func cluster(t *testing.T, v string) (dir string, s *store.Store) {
	t.Helper()
	dir, err := os.MkdirTemp("", "bs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for name, text := range map[string]string{"cluster.json": `{"version":1,"nodeName":"` + v + `"}`, "pki/ca.crt": "ca " + v,
		"pki/ca.key": "k",
		"pki/sa.key": "s", "admin.kubeconfig": v} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	s = open(t, dir)
	for range 10 {
		if _, err := s.Client().Put(t.Context(), "k", v); err != nil {
			t.Fatal(err)
		}
	}
	return dir, s
}

func saveReal(t *testing.T, dir string, s *store.Store) Entry {
	t.Helper()
	h := header()
	h.DataDir, h.Etcd = dir, store.EtcdVersion
	from := Origin{Header: h, Store: func(ctx context.Context) (io.ReadCloser, int64, error) {
		r, err := s.Client().SnapshotWithVersion(ctx)
		if err != nil {
			return nil, 0, err
		}
		return r.Snapshot, s.Usage().Size, nil
	}}
	e, err := Save(t.Context(), from, Request{Dir: filepath.Join(dir, "snapshots"), Name: "one", Keys: NoKeys(), Now: noon})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func value(t *testing.T, s *store.Store) (string, int64) {
	t.Helper()
	got, err := s.Client().Get(t.Context(), "k")
	if err != nil || len(got.Kvs) != 1 {
		t.Fatalf("reading k: %v, %v", got, err)
	}
	return string(got.Kvs[0].Value), got.Header.Revision
}

func restoreTo(t *testing.T, file, dir string, at steps) error {
	t.Helper()
	m, _, err := Verify(file, NoKeys(), reads)
	if err != nil {
		t.Fatal(err)
	}
	target := Target{DataDir: dir, HasCluster: HasState(dir), Force: true}
	if r, err := Revision(filepath.Join(dir, "etcd", "member-data", "member", "snap", "db")); err == nil {
		target.Revision = r
	}
	plan, err := NewPlan(file, m, target, noon.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return (&Restore{File: file, Keys: NoKeys(), Reader: reads, DataDir: dir, Plan: plan, PeerSocket: filepath.Join(dir, "etcd",
		"peer.sock"),
		at: at}).Run()
}

// TestRestore: the store has the values of the snapshot, revisions go on above
// what anybody saw, watches from the past are told so, and the old state can be
// opened where it was moved to.
func TestRestore(t *testing.T) {
	dir, s := cluster(t, "old")
	e := saveReal(t, dir, s)
	if _, err := s.Client().Put(t.Context(), "k", "changed"); err != nil {
		t.Fatal(err)
	}
	_, seen := value(t, s)
	s.Close()
	if err := restoreTo(t, e.File, dir, nil); err != nil {
		t.Fatal(err)
	}
	if Pending(dir) {
		t.Error("something is left of the restore")
	}
	s = open(t, dir)
	v, revision := value(t, s)
	if v != "old" || revision < seen+revisionBump {
		t.Errorf("k is %q at revision %d, was seen at %d", v, revision, seen)
	}
	watch := s.Client().Watch(t.Context(), "k", clientv3.WithRev(seen))
	if r := <-watch; !errors.Is(r.Err(), rpctypes.ErrCompacted) {
		t.Errorf("a watch from the past: %v", r.Err())
	}
	put, err := s.Client().Put(t.Context(), "k", "new")
	if err != nil || put.Header.Revision <= revision {
		t.Errorf("a write: revision %v, %v", put, err)
	}
	s.Close()
	aside, err := filepath.Glob(filepath.Join(dir, "before-restore-*"))
	if err != nil || len(aside) != 1 {
		t.Fatalf("the old state: %v, %v", aside, err)
	}
	if v, _ := value(t, open(t, aside[0])); v != "changed" {
		t.Errorf("the old state has %q", v)
	}
	if exists(filepath.Join(dir, "admin.kubeconfig")) {
		t.Error("the old kubeconfig stayed")
	}
	info, err := os.Stat(filepath.Join(dir, "pki", "ca.key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("ca.key: %v, %v", info, err)
	}
}

// A restore of the same file again, onto what the first restore made, goes on
// above that.
func TestRestoreTwice(t *testing.T) {
	dir, s := cluster(t, "old")
	e := saveReal(t, dir, s)
	s.Close()
	fresh, err := os.MkdirTemp("", "bs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(fresh) })
	last := int64(0)
	for range 2 {
		if err := restoreTo(t, e.File, fresh, nil); err != nil {
			t.Fatal(err)
		}
		for _, old := range mustGlob(t, filepath.Join(fresh, "before-restore-*")) {
			if err := os.Rename(old, old+"-first"); err != nil {
				t.Fatal(err)
			}
		}
		s := open(t, fresh)
		v, revision := value(t, s)
		s.Close()
		if v != "old" || revision <= last {
			t.Fatalf("k is %q at revision %d, was at %d", v, revision, last)
		}
		last = revision
	}
}

func mustGlob(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

const killVariable = "BERTH_TEST_KILL_RESTORE"

// TestKilledRestore ends the restoring process by SIGKILL at each of its steps.
// What is there afterwards, once Finish has looked, is the old state whole or the
// new one whole, and the new one from the step on that marks it.
func TestKilledRestore(t *testing.T) {
	if how := strings.Split(os.Getenv(killVariable), ","); len(how) == 3 {
		n, _ := strconv.Atoi(how[0])
		at := 0
		err := restoreTo(t, how[1], how[2], func(name string) {
			if at++; at == n {
				fmt.Println("\nstep " + name)
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	other, s := cluster(t, "new")
	e := saveReal(t, other, s)
	s.Close()
	dir, s := cluster(t, "old")
	s.Close()
	whole := filepath.Join(t.TempDir(), "whole")
	if out, err := exec.Command("cp", "-a", dir, whole).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	marked := false
	for n := 1; ; n++ {
		if out, err := exec.Command("sh", "-c", `rm -rf "$1" && cp -a "$2" "$1"`, "sh", dir, whole).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		child := exec.Command(os.Args[0], "-test.run=^TestKilledRestore$", "-test.v")
		child.Env = append(os.Environ(), fmt.Sprintf("%s=%d,%s,%s", killVariable, n, e.File, dir))
		out, err := child.CombinedOutput()
		_, step, killed := strings.Cut(string(out), "\nstep ")
		step, _, _ = strings.Cut(step, "\n")
		if !killed && err != nil {
			t.Fatalf("step %d: %v\n%s", n, err, out)
		}
		marked = marked || step == "marked" || !killed
		if err := Finish(dir); err != nil {
			t.Fatalf("killed at %q: %v", step, err)
		}
		want := map[bool]string{false: "old", true: "new"}[marked]
		checkWhole(t, fmt.Sprintf("killed at %q", step), dir, want)
		if !killed {
			if n < 8 || !marked {
				t.Errorf("only %d steps", n-1)
			}
			return
		}
	}
}

func checkWhole(t *testing.T, when, dir, want string) {
	t.Helper()
	if Pending(dir) {
		t.Errorf("%s: something is left", when)
	}
	for name, text := range map[string]string{"cluster.json": `{"version":1,"nodeName":"` + want + `"}`, "pki/ca.crt": "ca " + want} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != text {
			t.Errorf("%s: %s is %q (%v), want %q", when, name, got, err, text)
		}
	}
	s := open(t, dir)
	defer s.Close()
	if v, _ := value(t, s); v != want {
		t.Errorf("%s: the store has %q, want %q", when, v, want)
	}
	if aside := mustGlob(t, filepath.Join(dir, "before-restore-*", "*")); (want == "new") != (len(aside) == 4) {
		t.Errorf("%s: moved aside: %v", when, aside)
	}
}

// A damaged file changes nothing, however far it is read.
func TestDamagedFileRestoresNothing(t *testing.T) {
	dir, s := cluster(t, "old")
	e := saveReal(t, dir, s)
	s.Close()
	m, _, err := Verify(e.File, NoKeys(), reads)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := NewPlan(e.File, m, Target{DataDir: dir, HasCluster: true, Force: true}, noon)
	if err != nil {
		t.Fatal(err)
	}
	data, _ := os.ReadFile(e.File)
	data[len(data)-100] ^= 1
	if err := os.WriteFile(e.File, data, 0o600); err != nil {
		t.Fatal(err)
	}
	r := &Restore{File: e.File, Keys: NoKeys(), Reader: reads, DataDir: dir, Plan: plan, PeerSocket: filepath.Join(dir, "etcd",
		"peer.sock")}
	if err := r.Run(); err == nil {
		t.Error("a damaged file was restored")
	}
	checkWhole(t, "after a damaged file", dir, "old")
}
