package berthtest_test

import (
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/berthtest"
)

// awaitEnd waits until a process that is no child of ours has ended.
func awaitEnd(t *testing.T, pid string) {
	t.Helper()
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatalf("process %q: %v", pid, err)
	}
	fd, err := unix.PidfdOpen(n, 0)
	if err == unix.ESRCH {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if err != unix.EINTR {
			if err != nil {
				t.Fatal(err)
			}
			return
		}
	}
}

// benchStart starts and ends one API server; only the start counts.
func benchStart(b *testing.B) {
	_, end, err := berthtest.StartMain(berthtest.APIOnly())
	if err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	if err := end(); err != nil {
		b.Fatal(err)
	}
	b.StartTimer()
}
