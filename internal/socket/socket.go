// Package socket opens the unix sockets on which a running berth answers its
// own commands.
package socket

import (
	"errors"
	"fmt"
	"net"
	"os"
)

// Listen opens a socket that only its owner may use. One that a process left
// behind, which did not end in order, is replaced. name is for errors.
func Listen(name, path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("clearing the %s socket: %w", name, err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("opening the %s socket: %w", name, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("protecting the %s socket: %w", name, err), l.Close())
	}
	return l, nil
}
