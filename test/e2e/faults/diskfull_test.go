package faults

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestStoreOutlivesAFullDisk: the disk of the store fills under a running
// cluster. The process, its pods, agent, proxy and DNS go on; when there is room
// the server comes back by itself, with what it had acknowledged, and no
// container was disturbed.
func TestStoreOutlivesAFullDisk(t *testing.T) {
	c := kit.NewCluster(t)
	disk := filepath.Join(c.Dir, "etcd")
	kit.Must(t, os.MkdirAll(disk, 0o700))
	kit.Must(t, unix.Mount("tmpfs", disk, "tmpfs", 0, "size=400m,mode=0700"))
	t.Cleanup(func() { // after the process that holds it
		if out, err := c.TryBerth("down", "--data-dir", c.Dir); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	c.Up()
	c.Apply(kit.SimplePod("stays", ""))
	before, pid := c.Container("stays"), c.PID()
	nodeIP := c.Node().Status.Addresses[0].Address
	filler := filepath.Join(disk, "filler")
	// ENOSPC is the point: it writes until there is no room.
	if err := exec.Command("dd", "if=/dev/zero", "of="+filler, "bs=1M").Run(); err == nil {
		t.Fatal("the disk has no end")
	}
	blob := bytes.Repeat([]byte("x"), 900<<10)
	var full error
	for i := 0; i < 500 && full == nil; i++ {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, full = c.Client.CoreV1().ConfigMaps("default").Create(ctx, &v1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("blob-", i)}, BinaryData: map[string][]byte{"b": blob}}, metav1.CreateOptions{})
		cancel()
	}
	if full == nil {
		t.Fatal("500 MB went into a disk of 400 MB")
	}
	status := func() string { out, _ := c.TryBerth("status", "--data-dir", c.Dir); return out }
	c.Eventually("the status says that the store failed", func() (bool, string) {
		out := status()
		return strings.Contains(out, "no space left on device"), out
	})
	if now := c.PID(); now != pid {
		t.Errorf("the process was %d, is %d", pid, now)
	}
	if got := c.ContainerPIDs()[before.ID]; got != before.PID {
		t.Errorf("the container's process was %d, is %d", before.PID, got)
	}
	goOn(t, c, nodeIP)

	kit.Must(t, os.Remove(filler))
	c.Eventually("the server is back", func() (bool, string) {
		return writes(c), status()
	})
	if now := c.Container("stays"); now.ID != before.ID || now.PID != before.PID {
		t.Errorf("the container was %v, is %v", before, now)
	}
	if now := c.PID(); now != pid {
		t.Errorf("the process was %d, is %d: it begins again in its own place", pid, now)
	}
}

// writes says whether the API takes a write.
func writes(c *kit.Cluster) bool {
	_, err := c.TryKubectl("", "annotate", "--overwrite", "namespace", "default", "probe="+fmt.Sprint(time.Now().UnixNano()))
	return err == nil
}

// resolveAt asks a DNS server.
func resolveAt(t *testing.T, server, name string) []string {
	t.Helper()
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", server)
	}}
	ips, err := r.LookupHost(t.Context(), name+".")
	if err != nil {
		t.Errorf("resolving %s: %v", name, err)
	}
	return ips
}
