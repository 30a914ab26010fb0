package nft

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Settle returns when every packet that entered the kernel's hooks before the
// call has left them, some 10 ms later. Such a packet goes on along the chains
// it found when it came, so a table that replaces another guards it only after
// this. The kernel has no call of that name: closing a packet socket waits for
// an RCU grace period (packet_release, synchronize_net), and packets pass the
// hooks within one. Needs CAP_NET_RAW.
func Settle() error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening a packet socket to wait for packets under way: %w", err)
	}
	return unix.Close(fd)
}
