package shutdown

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
)

const (
	logindName      = "org.freedesktop.login1"
	logindPath      = dbus.ObjectPath("/org/freedesktop/login1")
	logindInterface = "org.freedesktop.login1.Manager"
	// defaultDropIn raises the longest delay that logind grants.
	defaultDropIn = "/etc/systemd/logind.conf.d/99-kubelet.conf"
)

// Logind is the System of hosts that run systemd-logind.
type Logind struct {
	// DropIn is the file that raises logind's limit, default in /etc.
	DropIn string

	mu   sync.Mutex
	conn *dbus.Conn
}

// connect returns a connection that works; l.mu is held.
func (l *Logind) connect() (*dbus.Conn, error) {
	if l.conn != nil && l.conn.Connected() {
		return l.conn, nil
	}
	conn, err := dbus.ConnectSystemBus()
	if err != nil {
		return nil, fmt.Errorf("connecting to D-Bus for logind: %w", err)
	}
	l.conn = conn
	return conn, nil
}

// Delay takes a delay lock. If logind's limit is too low it is raised by a
// drop-in file first.
func (l *Logind) Delay(ctx context.Context, need time.Duration) (time.Duration, func(), error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	conn, err := l.connect()
	if err != nil {
		return 0, nil, err
	}
	granted, err := longestDelay(conn)
	if err != nil {
		return 0, nil, err
	}
	if granted < need {
		if err := l.raiseDelay(ctx, conn, need); err != nil {
			return 0, nil, err
		}
		if granted, err = longestDelay(conn); err != nil {
			return 0, nil, err
		}
	}
	var fd dbus.UnixFD
	call := conn.Object(logindName, logindPath).CallWithContext(ctx, logindInterface+".Inhibit", 0, "shutdown", "kubelet",
		"Kubelet needs time to handle node shutdown", "delay")
	if err := call.Store(&fd); err != nil {
		return 0, nil, fmt.Errorf("taking logind's delay lock: %w", err)
	}
	lock := os.NewFile(uintptr(fd), "logind-delay")
	return granted, func() { lock.Close() }, nil
}

func longestDelay(conn *dbus.Conn) (time.Duration, error) {
	value, err := conn.Object(logindName, logindPath).GetProperty(logindInterface + ".InhibitDelayMaxUSec")
	if err != nil {
		return 0, fmt.Errorf("reading logind's longest delay: %w", err)
	}
	micros, ok := value.Value().(uint64)
	if !ok {
		return 0, fmt.Errorf("reading logind's longest delay: %v is no number", value)
	}
	return time.Duration(micros) * time.Microsecond, nil
}

// raiseDelay writes the drop-in and has logind read it. The new limit shows a
// moment later, so it is waited for.
func (l *Logind) raiseDelay(ctx context.Context, conn *dbus.Conn, need time.Duration) error {
	file := l.DropIn
	if file == "" {
		file = defaultDropIn
	}
	text := fmt.Sprintf("# Made by berth: time for pods to end at shutdown.\n[Login]\nInhibitDelayMaxSec=%.0f\n", need.Seconds())
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("raising logind's longest delay: %w", err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return fmt.Errorf("raising logind's longest delay: %w", err)
	}
	call := conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1").CallWithContext(ctx,
		"org.freedesktop.systemd1.Manager.KillUnit", 0,
		"systemd-logind.service", "all", int32(syscall.SIGHUP))
	if call.Err != nil {
		return fmt.Errorf("having logind read its configuration: %w", call.Err)
	}
	for try := 0; try < 20; try++ {
		if granted, err := longestDelay(conn); err == nil && granted >= need {
			return nil
		}
		timer := time.NewTimer(50 * time.Millisecond)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
	return nil // the caller warns about what is granted
}

// Watch follows the PrepareForShutdown signal.
func (l *Logind) Watch(ctx context.Context) (<-chan bool, error) {
	l.mu.Lock()
	conn, err := l.connect()
	l.mu.Unlock()
	if err != nil {
		return nil, err
	}
	match := []dbus.MatchOption{dbus.WithMatchInterface(logindInterface), dbus.WithMatchMember("PrepareForShutdown"),
		dbus.WithMatchObjectPath(logindPath)}
	if err := conn.AddMatchSignalContext(ctx, match...); err != nil {
		return nil, fmt.Errorf("watching for shutdowns: %w", err)
	}
	signals := make(chan *dbus.Signal, 4)
	conn.Signal(signals)
	told := make(chan bool)
	go func() {
		defer close(told)
		defer conn.RemoveSignal(signals)
		for {
			select {
			case <-ctx.Done():
				return
			case signal, ok := <-signals:
				if !ok {
					return
				}
				begins, err := shutdownBegins(signal)
				if err != nil {
					continue
				}
				select {
				case told <- begins:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return told, nil
}

func shutdownBegins(signal *dbus.Signal) (bool, error) {
	if signal.Name != logindInterface+".PrepareForShutdown" || len(signal.Body) != 1 {
		return false, errors.New("another signal")
	}
	begins, ok := signal.Body[0].(bool)
	if !ok {
		return false, errors.New("another signal")
	}
	return begins, nil
}
