package device

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestPluginsTakeOver rolls a plugin over without a gap: the newest is in
// charge, whichever of them goes.
func TestPluginsTakeOver(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "device-plugins")
	a := startAgent(t, root)
	first := serveNamed(t, dir, "first.sock", "a", "b")
	first.register()
	a.await("2/2")
	if err := a.give(wants("before", nil, []int64{1})); err != nil {
		t.Fatal(err)
	}

	// One that does not tell its options is not taken, and changes nothing.
	broken := serveNamed(t, dir, "broken.sock", "x")
	broken.silent = true
	if err := broken.tryRegister(); err == nil || !strings.Contains(err.Error(), "failed to get device plugin options") ||
		!strings.Contains(err.Error(), "not yet") {
		t.Errorf("a plugin without options is answered %v", err)
	}
	if err := a.give(wants("between", nil, []int64{1})); err != nil {
		t.Errorf("beside a broken plugin: %v", err)
	}
	a.Release("between")

	second := serveNamed(t, dir, "second.sock", "a", "b", "c")
	second.register()
	a.await("3/3")
	first.show("a!", "b!") // the older one is not asked any more
	first.fail(true)
	if err := a.give(wants("with both", nil, []int64{1})); err != nil {
		t.Errorf("with both: %v", err)
	}
	first.fail(false)

	// The newer one changes its mind: the older one says what there is.
	first.show("a", "b")
	second.server.Stop()
	a.await("2/2")
	a.Release("with both")
	if err := a.give(wants("after", nil, []int64{1})); err != nil {
		t.Errorf("after the newer one went: %v", err)
	}
	third := serveNamed(t, dir, "third.sock", "a", "b", "c", "d")
	third.register()
	a.await("4/4")
	first.server.Stop()
	a.awaitPlugins(1) // else the third could be lost before it, and the first's devices stay
	third.show("a", "b", "c", "d", "e")
	a.await("5/5")
	third.server.Stop()
	a.await("0/5")
}

// TestPluginThatListsNothing: its resource is known, with none.
func TestPluginThatListsNothing(t *testing.T) {
	root := t.TempDir()
	a := startAgent(t, root)
	s := serveNamed(t, filepath.Join(root, "device-plugins"), "mute.sock")
	s.mute = true
	s.register()
	a.await("0/0")
	a.mu.Lock()
	_, known := a.ledger.devices[thing]
	a.mu.Unlock()
	if !known {
		t.Error("the resource is unknown")
	}
}

// TestDevicesAreNotThereAfterAReboot: what a pod held counts only while it is
// healthy.
func TestDevicesAreNotThereAfterAReboot(t *testing.T) {
	l, pod := newLedger(), wants("p", nil, []int64{1})
	next := func() string {
		_, _, err := l.Next(pod, &pod.Spec.Containers[0], 0)
		if err != nil {
			return err.Error()
		}
		return ""
	}
	l.Give(pod.UID, "main0", containerDevices{Resource: thing, IDs: []string{"a"}})
	l.Drop(thing) // as after a restart
	if got := next(); got != "no healthy devices present; cannot allocate unhealthy devices example.com/thing" {
		t.Errorf("without the plugin: %q", got)
	}
	l.Know(thing, []device{{ID: "a"}, {ID: "b", Healthy: true}})
	if got := next(); got != "previously allocated devices are no longer healthy; cannot allocate unhealthy devices example.com/thing" {
		t.Errorf("with the device broken: %q", got)
	}
	l.Know(thing, []device{{ID: "a", Healthy: true}})
	if got := next(); got != "" {
		t.Errorf("with the device: %q", got)
	}
}
