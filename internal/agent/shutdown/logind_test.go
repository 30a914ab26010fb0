package shutdown

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// privateBus starts a message bus of the test's own and makes it the system
// bus of this process.
func privateBus(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	conf := filepath.Join(dir, "bus.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path=%s/bus</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/><allow user="*"/></policy></busconfig>`, dir), 0o600); err != nil {
		t.Fatal(err)
	}
	daemon := exec.Command("dbus-daemon", "--config-file="+conf, "--nofork", "--print-address=1")
	out, err := daemon.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	daemon.Stderr = os.Stderr
	if err := daemon.Start(); err != nil {
		t.Fatalf("starting dbus-daemon (Debian package dbus-daemon; hack/install.sh test installs it): %v", err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
	})
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("reading the address of the bus: %v", err)
	}
	address = strings.TrimSpace(address)
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
	return address
}

// logindFake is logind and the bit of systemd that makes it read its
// configuration.
type logindFake struct {
	t      *testing.T
	conn   *dbus.Conn
	props  *prop.Properties
	dropIn string
	locks  chan *os.File // our end of each delay lock that was taken

	mu    sync.Mutex
	asked []string
}

func startLogind(t *testing.T, address string, longest time.Duration, dropIn string) *logindFake {
	t.Helper()
	conn, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	f := &logindFake{t: t, conn: conn, dropIn: dropIn, locks: make(chan *os.File, 4)}
	if err := conn.Export(f, logindPath, logindInterface); err != nil {
		t.Fatal(err)
	}
	if err := conn.Export(systemdFake{f}, "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"); err != nil {
		t.Fatal(err)
	}
	f.props, err = prop.Export(conn, logindPath, prop.Map{logindInterface: {
		"InhibitDelayMaxUSec": {Value: uint64(longest.Microseconds()), Emit: prop.EmitFalse},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{logindName, "org.freedesktop.systemd1"} {
		if reply, err := conn.RequestName(name, dbus.NameFlagDoNotQueue); err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
			t.Fatalf("taking the name %s: %v %v", name, reply, err)
		}
	}
	return f
}

// Inhibit hands out a delay lock: a descriptor that is held for as long as the
// shutdown has to wait.
func (f *logindFake) Inhibit(what, who, why, mode string) (dbus.UnixFD, *dbus.Error) {
	ours, theirs, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	f.mu.Lock()
	f.asked = append(f.asked, what+" "+mode+" "+who)
	f.mu.Unlock()
	f.locks <- ours
	// The message carries a copy; ours of their end must go, or the lock would
	// seem held for ever.
	time.AfterFunc(time.Second, func() { theirs.Close() })
	return dbus.UnixFD(theirs.Fd()), nil
}

// shutdown tells everybody that the machine goes down, or that it does not.
func (f *logindFake) shutdown(begins bool) {
	if err := f.conn.Emit(logindPath, logindInterface+".PrepareForShutdown", begins); err != nil {
		f.t.Error(err)
	}
}

type systemdFake struct{ logind *logindFake }

// KillUnit is how logind is told to read its configuration again.
func (s systemdFake) KillUnit(unit, _ string, signal int32) *dbus.Error {
	text, err := os.ReadFile(s.logind.dropIn)
	if err != nil {
		return dbus.MakeFailedError(err)
	}
	m := regexp.MustCompile(`(?m)^InhibitDelayMaxSec=(\d+)$`).FindSubmatch(text)
	if unit != "systemd-logind.service" || signal != 1 || m == nil {
		return dbus.MakeFailedError(fmt.Errorf("%s got signal %d with %q", unit, signal, text))
	}
	seconds, err := strconv.ParseUint(string(m[1]), 10, 32)
	if err != nil {
		return dbus.MakeFailedError(err)
	}
	s.logind.props.SetMust(logindInterface, "InhibitDelayMaxUSec", seconds*1_000_000)
	return nil
}

// TestShutdownOverTheBus takes a delay lock over a real message bus, raises the
// limit first, ends pods when the signal comes, and lets the machine go after.
func TestShutdownOverTheBus(t *testing.T) {
	address := privateBus(t)
	dropIn := filepath.Join(t.TempDir(), "logind.conf.d", "99.conf")
	logind := startLogind(t, address, 5*time.Second, dropIn)
	over := make(chan struct{})
	killed := make(chan string, 10)
	m, err := New(Config{
		Log: slog.New(slog.DiscardHandler), NodeName: "n1", System: &Logind{DropIn: dropIn}, Board: &board{}, Events: record.NewFakeRecorder(10),
		Kubelet: &kubeletv1beta1.KubeletConfiguration{ShutdownGracePeriod: seconds(30), ShutdownGracePeriodCriticalPods: seconds(10)},
		Pods:    func() []*v1.Pod { return []*v1.Pod{pod("dns", criticalPriority, 5), pod("web", 0, 5)} },
		Kill: func(p *v1.Pod, _ time.Duration) <-chan struct{} {
			killed <- p.Name
			return over
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	lock := <-logind.locks
	logind.mu.Lock()
	if got := strings.Join(logind.asked, ","); got != "shutdown delay kubelet" {
		t.Errorf("logind was asked for %q", got)
	}
	logind.mu.Unlock()
	if text, err := os.ReadFile(dropIn); err != nil || !strings.Contains(string(text), "InhibitDelayMaxSec=30") {
		t.Errorf("the limit was not raised: %q, %v", text, err)
	}
	// The lock is taken a moment before the signal is listened for.
	for first := ""; first == ""; {
		logind.shutdown(true)
		select {
		case first = <-killed:
			if first != "web" {
				t.Errorf("%s was ended first", first)
			}
		case <-time.After(20 * time.Millisecond):
		}
	}
	released := make(chan struct{})
	go func() {
		defer close(released)
		_, _ = io.Copy(io.Discard, lock) // until nobody holds the other end
	}()
	select {
	case <-released:
		t.Error("the machine was let go with pods still ending")
	default:
	}
	close(over)
	if second := <-killed; second != "dns" {
		t.Errorf("%s was ended second", second)
	}
	<-released
	if reason, _, ok := m.Admit(nil); ok || reason != "NodeShutdown" {
		t.Errorf("a pod was admitted (%s)", reason)
	}
	logind.shutdown(false)
	<-logind.locks // a new delay for the next time
}

// TestWithoutABusThereIsAReason: the manager says what is missing and goes on
// trying.
func TestWithoutABusThereIsAReason(t *testing.T) {
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(t.TempDir(), "none"))
	_, _, err := (&Logind{}).Delay(t.Context(), time.Second)
	if err == nil || !strings.Contains(err.Error(), "connecting to D-Bus for logind") {
		t.Errorf("got %v", err)
	}
}
