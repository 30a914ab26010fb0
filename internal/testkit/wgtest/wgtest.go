// Package wgtest gives tests WireGuard devices in userspace, for machines whose
// kernel has none. Nothing but tests may use it.
package wgtest

import (
	"fmt"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/vishvananda/netns"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/ipc"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/berth-dev/berth/internal/testkit/netnstest"
)

// New makes a device in a namespace, down and without a key, as a program in
// userspace would: its socket is in /var/run/wireguard, so name must be one
// that no other device of this machine has, in whatever namespace. The device
// goes with its link, with stop, or with the test.
func New(t testing.TB, ns netns.NsHandle, name string) (stop func()) {
	t.Helper()
	var dev *device.Device
	var l net.Listener
	err := netnstest.In(ns, func() error {
		if _, err := os.Stat("/dev/net/tun"); err != nil {
			t.Skip("this machine has no /dev/net/tun")
		}
		link, err := tun.CreateTUN(name, device.DefaultMTU)
		if err != nil {
			return fmt.Errorf("making a TUN device: %w", err)
		}
		dev = device.NewDevice(&wire{link, ns}, &bind{conn.NewStdNetBind(), ns}, device.NewLogger(device.LogLevelSilent, name+": "))
		file, err := ipc.UAPIOpen(name)
		if err != nil {
			return err
		}
		l, err = ipc.UAPIListen(name, file)
		return err
	})
	if err != nil {
		if dev != nil {
			dev.Close()
		}
		t.Fatalf("making WireGuard device %s: %v", name, err)
	}
	var once sync.Once
	var serving sync.WaitGroup
	stop = func() {
		once.Do(func() {
			l.Close()
			dev.Close()
			serving.Wait()
		})
	}
	t.Cleanup(stop)
	go func() {
		<-dev.Wait() // its link was deleted
		stop()
	}()
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { dev.IpcHandle(c) })
		}
	})
	return stop
}

// wire asks for its MTU in a namespace.
type wire struct {
	tun.Device
	ns netns.NsHandle
}

// MTU implements tun.Device.
func (w *wire) MTU() (mtu int, err error) {
	err = netnstest.In(w.ns, func() error {
		var err error
		mtu, err = w.Device.MTU()
		return err
	})
	return mtu, err
}

// bind opens its sockets in a namespace.
type bind struct {
	conn.Bind
	ns netns.NsHandle
}

// Open implements conn.Bind.
func (b *bind) Open(port uint16) (receive []conn.ReceiveFunc, actual uint16, err error) {
	err = netnstest.In(b.ns, func() error {
		var err error
		receive, actual, err = b.Bind.Open(port)
		return err
	})
	return receive, actual, err
}
