// Package logindtest stands in for systemd-logind in tests, on a message bus of
// their own.
package logindtest

import (
	"bufio"
	"fmt"
	"io"
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
)

const (
	path    = dbus.ObjectPath("/org/freedesktop/login1")
	manager = "org.freedesktop.login1.Manager"
)

// startBus starts a message bus and makes it the system bus of this process
// and of those it starts.
func startBus(t testing.TB) (address string) {
	t.Helper()
	dir := t.TempDir()
	conf := filepath.Join(dir, "bus.conf")
	if err := os.WriteFile(conf,
		fmt.Appendf(nil, `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" `+
			`"http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path=%s/bus</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/><allow `+
			`user="*"/></policy></busconfig>`, dir), 0o600); err != nil {
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
	address, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("reading the address of the bus: %v", err)
	}
	address = strings.TrimSpace(address)
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
	return address
}

// logind is the fake, with the bit of systemd that makes logind read its
// configuration.
type logind struct {
	// Locks gets each delay lock that is taken.
	Locks <-chan *lock

	t      testing.TB
	conn   *dbus.Conn
	props  *prop.Properties
	dropIn string
	locks  chan *lock
}

// Start runs a logind that delays shutdowns for at most longest; dropIn is the
// file that it reads another limit from.
func Start(t testing.TB, longest time.Duration, dropIn string) *logind {
	t.Helper()
	conn, err := dbus.Connect(startBus(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	locks := make(chan *lock, 4)
	l := &logind{Locks: locks, t: t, conn: conn, dropIn: dropIn, locks: locks}
	if err := conn.Export(calls{l}, path, manager); err != nil {
		t.Fatal(err)
	}
	if err := conn.Export(systemd{l}, "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"); err != nil {
		t.Fatal(err)
	}
	if l.props, err = prop.Export(conn, path, prop.Map{manager: {
		"InhibitDelayMaxUSec": {Value: uint64(longest.Microseconds()), Emit: prop.EmitFalse},
	}}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"org.freedesktop.login1", "org.freedesktop.systemd1"} {
		if reply, err := conn.RequestName(name, dbus.NameFlagDoNotQueue); err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
			t.Fatalf("taking the name %s: %v %v", name, reply, err)
		}
	}
	return l
}

// Announce tells everybody that the host goes down, or that it does not.
func (l *logind) Announce(begins bool) {
	if err := l.conn.Emit(path, manager+".PrepareForShutdown", begins); err != nil {
		l.t.Error(err)
	}
}

// lock is a delay lock: a descriptor that someone holds for as long as the
// shutdown has to wait.
type lock struct {
	// Asked says what for: what, mode and who.
	Asked string

	ours     *os.File
	once     sync.Once
	released chan struct{}
}

// Released is closed when no one holds the lock any more.
func (l *lock) Released() <-chan struct{} {
	l.once.Do(func() {
		l.released = make(chan struct{})
		go func() {
			defer close(l.released)
			_, _ = io.Copy(io.Discard, l.ours) // until no one holds the other end
			_ = l.ours.Close()
		}()
	})
	return l.released
}

// calls are logind's methods on the bus.
type calls struct{ logind *logind }

// Inhibit hands out a delay lock.
func (c calls) Inhibit(what, who, _, mode string) (dbus.UnixFD, *dbus.Error) {
	ours, theirs, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	c.logind.locks <- &lock{Asked: what + " " + mode + " " + who, ours: ours}
	// The message carries a copy; ours of their end must go, or the lock would
	// seem held for ever.
	time.AfterFunc(time.Second, func() { theirs.Close() })
	return dbus.UnixFD(theirs.Fd()), nil
}

type systemd struct{ logind *logind }

// KillUnit is how logind is told to read its configuration again.
func (s systemd) KillUnit(unit, _ string, signal int32) *dbus.Error {
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
	s.logind.props.SetMust(manager, "InhibitDelayMaxUSec", seconds*1_000_000)
	return nil
}
