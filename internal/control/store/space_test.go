package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// startSmall starts a store of that many bytes.
func startSmall(t *testing.T, dir string, quota int64) *Store {
	t.Helper()
	s, err := Start(t.Context(), Config{DataDir: dir, Quota: quota})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// create writes a key as the API server does: only if it is not there.
func create(t *testing.T, s *Store, key string, size int) error {
	t.Helper()
	_, err := s.Client().Txn(t.Context()).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, strings.Repeat("x", size))).Commit()
	return err
}

// TestFullStoreIsEmptiedByItsUsers is finding 7: a database at its quota
// refuses new objects with a clear error, takes Leases and small changes, and
// takes new objects again once something was deleted, without a restart.
func TestFullStoreIsEmptiedByItsUsers(t *testing.T) {
	const quota, size = 64 << 20, 256 << 10
	dir := t.TempDir()
	s := startSmall(t, dir, quota)
	var full *FullError
	var keys []string
	// The first refusals make it tidy up, after which there may be room for some more.
	for refused := 0; refused < 10 || s.HasRoom() == nil; {
		key := fmt.Sprintf("/registry/configmaps/default/%d", len(keys))
		if err := create(t, s, key, size); err == nil {
			keys, refused = append(keys, key), 0
		} else if refused++; !errors.As(err, &full) {
			t.Fatalf("after %d writes: %v, want a FullError", len(keys), err)
		}
		if len(keys) > quota/size {
			t.Fatal("more was written than the quota allows")
		}
	}
	if !full.Usage.Full() || full.Status().Code != 507 {
		t.Errorf("full with %s", full.Usage)
	}
	// The socket is not a way around.
	outside, err := Start(t.Context(), Config{Servers: s.Transport().ServerList})
	if err != nil {
		t.Fatal(err)
	}
	defer outside.Close()
	for i := 0; ; i++ { // tidying may have made room for one or two
		key := fmt.Sprint("/registry/example.com/things/", i)
		if err := create(t, outside, key, size); err != nil && strings.Contains(err.Error(), "the store is full") &&
			strings.Contains(err.Error(), "Delete objects that are not needed") {
			break
		} else if err != nil || i == 5 {
			t.Fatalf("a new object over the socket: %v", err)
		}
		keys = append(keys, key)
	}
	// Nodes stay: their Leases are renewed for hours, and new ones come.
	for i := range 500 {
		if _, err := s.Client().Put(t.Context(), "/registry/leases/kube-node-lease/n", strings.Repeat("l", 400)); err != nil {
			t.Fatalf("renewal %d of a Lease in a full store: %v", i, err)
		}
	}
	if err := create(t, s, "/registry/leases/kube-node-lease/new", 400); err != nil {
		t.Errorf("the Lease of a new node: %v", err)
	}
	// Deleting takes a change first: a deletion timestamp.
	if _, err := s.Client().Txn(t.Context()).If(clientv3.Compare(clientv3.ModRevision(keys[0]), ">", 0)).
		Then(clientv3.OpPut(keys[0], strings.Repeat("y", smallChange))).Commit(); err != nil {
		t.Errorf("a small change: %v", err)
	}
	for _, key := range keys {
		if _, err := s.Client().Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	// Room comes back by itself; each attempt may trigger it, the test's
	// deadline bounds them.
	for i := 0; ; i++ {
		err := create(t, s, fmt.Sprint("/registry/configmaps/default/again-", i), size)
		if err == nil {
			break
		}
		if !errors.As(err, &full) || t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
	if u := s.Usage(); u.Full() || s.HasRoom() != nil {
		t.Errorf("after deleting everything: %s", u)
	}
}

// A directory that an older version left with etcd's alarm raised starts, and recovers.
func TestAlarmIsDisarmed(t *testing.T) {
	const quota = 24 << 20
	dir := t.TempDir()
	s := startSmall(t, dir, quota)
	// Past our own limit, straight into etcd, as older versions let everybody.
	raw := rawClient(s)
	var keys []string
	for {
		key := fmt.Sprint("/registry/configmaps/default/", len(keys))
		if _, err := raw.Put(t.Context(), key, strings.Repeat("x", 512<<10)); err != nil {
			if !strings.Contains(err.Error(), "space exceeded") {
				t.Fatal(err)
			}
			break
		}
		keys = append(keys, key)
	}
	for _, key := range keys {
		if _, err := raw.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	s = startSmall(t, dir, quota)
	for create(t, s, "/registry/configmaps/default/new", 100) != nil { // until the first look is over
		if t.Context().Err() != nil {
			t.Fatal("the store never recovered")
		}
	}
}

func TestAdmits(t *testing.T) {
	full, roomy := Usage{Size: 94, InUse: 94, Quota: 100}, Usage{Size: 94, InUse: 60, Quota: 100}
	for _, c := range []struct {
		why  string
		p    put
		want bool
	}{
		{"a new object", put{"/registry/pods/default/p", 10, true}, false},
		{"a small change", put{"/registry/pods/default/p", smallChange, false}, true},
		{"a large change", put{"/registry/configmaps/default/c", smallChange + 1, false}, false},
		{"a node's Lease", put{"/registry/leases/kube-node-lease/n", 400, true}, true},
		{"a leader's Lease", put{"/registry/leases/kube-system/scheduler", 400, false}, true},
		{"a large Lease of a node", put{"/registry/leases/kube-node-lease/n", smallLease + 1, true}, false},
		{"a user's Lease", put{"/registry/leases/default/l", 400, true}, false},
		{"an API server's endpoint", put{"/registry/masterleases/192.0.2.1", 100, false}, true},
		{"the compactor's mark", put{"compact_rev_key", 10, false}, true},
	} {
		if err := admits(full, []put{c.p}); (err == nil) != c.want {
			t.Errorf("%s in a full store: %v", c.why, err)
		}
		if err := admits(roomy, []put{c.p}); err != nil {
			t.Errorf("%s in a store with room: %v", c.why, err)
		}
	}
	if !full.Warn() || roomy.Warn() || roomy.Full() || !roomy.scattered() || full.scattered() || (Usage{}).Full() || (Usage{}).Warn() {
		t.Error("levels are wrong")
	}
}
