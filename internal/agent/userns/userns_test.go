package userns

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// Random pods come and go and the agent restarts: ranges never overlap, stay
// in bounds, and a pod keeps its own.
func TestRangesNeverOverlap(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 3))
	cfg := Config{RootDir: t.TempDir(), First: 4 * Block, Count: 10 * Block, PerPod: 2 * Block}
	r, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	has := map[types.UID]uint32{}
	for range 2000 {
		uid := types.UID(fmt.Sprint("p", rnd.IntN(8)))
		switch rnd.IntN(5) {
		case 0:
			if err := r.Release(uid); err != nil {
				t.Fatal(err)
			}
			delete(has, uid)
		case 1:
			if r, err = Open(cfg); err != nil {
				t.Fatal(err)
			}
		default:
			m, err := r.Allocate(uid)
			if _, mine := has[uid]; !mine && len(has) == 5 {
				if err == nil {
					t.Fatal("a sixth pod got a range of five")
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			start := m.UIDs[0].HostID
			if old, ok := has[uid]; ok && old != start {
				t.Fatalf("pod %s moved from %d to %d", uid, old, start)
			}
			if start < 4*Block || start+2*Block > 14*Block || m.UIDs[0].Length != 2*Block || m.GIDs[0] != m.UIDs[0] {
				t.Fatalf("range %+v", m)
			}
			for other, o := range has {
				if other != uid && start < o+2*Block && o < start+2*Block {
					t.Fatalf("pods %s and %s overlap", uid, other)
				}
			}
			has[uid] = start
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, c := range []Config{{PerPod: 5}, {First: 1, Count: Block}, {First: Block, Count: 1 << 33},
		{First: Block, Count: Block, PerPod: 2 * Block}} {
		c.RootDir = t.TempDir()
		if _, err := Open(c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
	root := t.TempDir()
	for i, content := range []string{
		`{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],"gidMappings":[{"hostId":65536,"containerId":0,"length":65536}]}`,
		`{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],"gidMappings":[{"hostId":65536,"containerId":0,"length":65536}]}`,
	} {
		dir := filepath.Join(root, "pods", fmt.Sprint(i))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "userns"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(Config{RootDir: root}); err == nil {
		t.Error("two pods with one range were accepted")
	}
}
