//go:build vm

package shutdown

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRealLogind holds up a real shutdown, which is called off again: logind
// grants what is asked for, tells of the shutdown, and waits for the lock. It
// runs on the test machine (docs/vm.md).
func TestRealLogind(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	l := &Logind{DropIn: filepath.Join("/etc/systemd/logind.conf.d", "99-live.conf")}
	begins, err := l.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	const need = 4 * time.Minute // far more than logind's own 5 s
	granted, release, err := l.Delay(ctx, need)
	if err != nil || granted < need {
		t.Fatalf("granted %v: %v", granted, err)
	}
	list := func() string {
		out, err := exec.Command("systemd-inhibit", "--list", "--no-pager", "--no-legend").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if got := list(); !strings.Contains(got, "kubelet") || !strings.Contains(got, "delay") {
		t.Errorf("the locks are %s", got)
	}
	if out, err := exec.Command("systemctl", "reboot").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !<-begins {
		t.Error("the first word was not of a shutdown")
	}
	release()
	// The host goes down now; the next start shows that it did.
	<-ctx.Done()
	t.Error("the machine was not let go")
}
