package cli

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// TestNotify listens as a service manager does, by path and by abstract name.
func TestNotify(t *testing.T) {
	for _, name := range []string{filepath.Join(t.TempDir(), "s"), "@berth-test-notify-" + filepath.Base(t.TempDir())} {
		manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		defer manager.Close()
		t.Setenv("NOTIFY_SOCKET", name)
		n, err := takeNotifier()
		if err != nil {
			t.Fatal(err)
		}
		if left, ok := os.LookupEnv("NOTIFY_SOCKET"); ok {
			t.Errorf("child processes see %q", left)
		}
		if err := n.say("READY=1"); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 64)
		if k, err := manager.Read(buf); err != nil || string(buf[:k]) != "READY=1" {
			t.Errorf("the manager hears %q, %v", buf[:k], err)
		}
	}
	if err := (notifier{}).say("READY=1"); err != nil {
		t.Error("without a manager: ", err)
	}
}
