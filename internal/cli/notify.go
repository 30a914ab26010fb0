package cli

import (
	"fmt"
	"net"
	"os"
)

// notifier tells the service manager that started this program how it stands,
// in the protocol of sd_notify(3); the zero value tells no one.
type notifier struct{ socket string }

// takeNotifier finds the manager's socket and hides it from the programs that
// this one starts: the runtime would announce itself on it.
func takeNotifier() (notifier, error) {
	n := notifier{os.Getenv("NOTIFY_SOCKET")}
	if err := os.Unsetenv("NOTIFY_SOCKET"); err != nil {
		return n, fmt.Errorf("hiding NOTIFY_SOCKET from child processes: %w", err)
	}
	return n, nil
}

// say sends one state, such as "READY=1".
func (n notifier) say(state string) error {
	if n.socket == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("telling the service manager %s: %w", state, err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("telling the service manager %s: %w", state, err)
	}
	return nil
}
