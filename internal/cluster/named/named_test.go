package named

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func anyPorts(Place) bool { return true }

func home(t *testing.T) Home {
	dir := t.TempDir()
	return Home{Disk: filepath.Join(dir, "disk"), Memory: filepath.Join(dir, "memory")}
}

func made(t *testing.T, h Home, name string, inMemory bool) Place {
	t.Helper()
	p, err := h.Make(name, inMemory, anyPorts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{"a": true, "ci-42": true, strings.Repeat("x", 32): true, "": false, "A": false, "../x": false,
		".slots": false, "-a": false, "a-": false, "a/b": false, strings.Repeat("x", 33): false, "a_b": false} {
		if err := CheckName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestAClusterKeepsItsPlace(t *testing.T) {
	h := home(t)
	a := made(t, h, "a", false)
	if !a.New || a.InMemory || a.DataDir != filepath.Join(h.Disk, "a") {
		t.Errorf("first time: %+v", a)
	}
	again := made(t, h, "a", true)
	if again.New || again.DataDir != a.DataDir || again.Slot != a.Slot {
		t.Errorf("made again: %+v, was %+v", again, a)
	}
	found, err := h.Find("a")
	if err != nil || found.DataDir != a.DataDir {
		t.Errorf("found %+v, %v", found, err)
	}
	if b := made(t, h, "b", true); b.Slot == a.Slot || !b.InMemory || b.DataDir != filepath.Join(h.Memory, "b") {
		t.Errorf("another: %+v", b)
	}
}

func TestUnknownNameSaysHowToFindOut(t *testing.T) {
	if _, err := home(t).Find("x"); err == nil || !strings.Contains(err.Error(), "berth ls") {
		t.Error(err)
	}
}

// TestSlotOfALostClusterIsFree: memory is empty after the host's next start.
func TestSlotOfALostClusterIsFree(t *testing.T) {
	h := home(t)
	a := made(t, h, "a", true)
	if err := os.RemoveAll(h.Memory); err != nil {
		t.Fatal(err)
	}
	if all, err := h.List(); err != nil || len(all) != 0 {
		t.Errorf("listed %v, %v", all, err)
	}
	if b := made(t, h, "b", true); b.Slot != a.Slot {
		t.Errorf("slot %d, want %d again", b.Slot, a.Slot)
	}
}

func TestTakenPortsAreLeftOut(t *testing.T) {
	h := home(t)
	p, err := h.Make("a", false, func(p Place) bool { return p.Slot >= 5 })
	if err != nil || p.Slot != 5 || p.FirstPort() != firstPort+5*portsEach {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := h.Make("b", false, func(Place) bool { return false }); err == nil || !strings.Contains(err.Error(), "berth delete") {
		t.Error(err)
	}
}

func TestSlotsShareNothing(t *testing.T) {
	seen := map[netip.Prefix]int{}
	for i := range slots {
		p := Place{Slot: i}
		if last := p.FirstPort() + portsEach - 1; last >= 30000 {
			t.Errorf("slot %d reaches port %d", i, last)
		}
		for _, s := range []string{p.ClusterCIDR(), p.ServiceCIDR()} {
			n, err := netip.ParsePrefix(s)
			if err != nil || n != n.Masked() {
				t.Fatalf("slot %d: %s: %v", i, s, err)
			}
			for other, j := range seen {
				if n.Overlaps(other) {
					t.Errorf("slots %d and %d share %s", i, j, n)
				}
			}
			seen[n] = i
		}
	}
}

func TestClustersMadeAtOnceDiffer(t *testing.T) {
	h := home(t)
	var wg sync.WaitGroup
	got := make([]Place, 8)
	for i := range got {
		wg.Go(func() {
			p, err := h.Make("c"+string(rune('0'+i)), i%2 == 0, anyPorts)
			if err != nil {
				t.Error(err)
			}
			got[i] = p
		})
	}
	wg.Wait()
	slots := map[int]bool{}
	for _, p := range got {
		slots[p.Slot] = true
	}
	if len(slots) != len(got) {
		t.Errorf("%d clusters have %d slots", len(got), len(slots))
	}
}

// TestForeignDirectoryIsRefused: anybody may make a directory in /dev/shm
// before us.
func TestForeignDirectoryIsRefused(t *testing.T) {
	h := home(t)
	if err := os.MkdirAll(h.Memory, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(h.Memory, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Make("a", true, anyPorts); err == nil || !strings.Contains(err.Error(), h.Memory) {
		t.Errorf("a directory that all may write to: %v", err)
	}
	if err := os.RemoveAll(h.Memory); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(t.TempDir(), h.Memory); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Make("a", true, anyPorts); err == nil {
		t.Error("a symbolic link was followed")
	}
	if p := made(t, h, "a", false); p.InMemory {
		t.Errorf("%+v", p)
	}
}

func TestForgottenClusterIsGone(t *testing.T) {
	h := home(t)
	a := made(t, h, "a", false)
	if err := os.RemoveAll(a.DataDir); err != nil {
		t.Fatal(err)
	}
	for range 2 { // also when it was forgotten before
		if err := h.Forget(a); err != nil {
			t.Fatal(err)
		}
	}
	if entries, err := os.ReadDir(h.slots()); err != nil || len(entries) != 1 {
		t.Errorf("left %v, %v; want the lock", entries, err)
	}
}

func TestFreePorts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	if portsFree(port, 1) {
		t.Errorf("port %d is taken", port)
	}
}
