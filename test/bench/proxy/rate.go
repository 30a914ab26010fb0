package main

import (
	"fmt"
	"log"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
)

// rate compares new TCP connections to a server directly and through a
// cluster IP, in turns, since a shared machine is now slower and now faster.
func rate(services int) {
	b := newBed(services, 1)
	defer b.ns.Close()
	pod := newNS()
	defer pod.Close()
	addr := endpoint(0, 0)
	inNS(b.ns, func() {
		command("ip", "link", "add", "veth0", "type", "veth", "peer", "name", "peer0")
		peer, err := netlink.LinkByName("peer0")
		if err != nil {
			log.Fatal(err)
		}
		if err := netlink.LinkSetNsFd(peer, int(pod)); err != nil {
			log.Fatal(err)
		}
		command("ip", "addr", "add", "192.0.2.10/32", "dev", "veth0")
		command("ip", "link", "set", "veth0", "up")
		command("ip", "route", "add", addr, "dev", "veth0")
		command("ip", "route", "add", "default", "dev", "veth0")
	})
	var l net.Listener
	inNS(pod, func() {
		command("ip", "link", "set", "peer0", "up")
		command("ip", "addr", "add", addr+"/32", "dev", "peer0")
		command("ip", "route", "add", "192.0.2.10", "dev", "peer0")
		var err error
		if l, err = net.Listen("tcp", addr+":8080"); err != nil {
			log.Fatal(err)
		}
	})
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	b.run()
	defer b.stop()
	var direct, through []float64
	inNS(b.ns, func() {
		for range 15 {
			direct = append(direct, dial(addr, 8080))
			through = append(through, dial(clusterIP(0), 80))
		}
	})
	slices.Sort(direct)
	slices.Sort(through)
	d, t := direct[len(direct)/2], through[len(through)/2]
	fmt.Printf("\nnew connections a second at %d Services, medians of %d turns: direct %.0f, through a cluster IP %.0f, ratio %.3f\n", services, len(direct), d, t, t/d)
}

// dial connects one after the other for a while and returns how many a second.
func dial(host string, port int) float64 {
	n, began := 0, time.Now()
	for time.Since(began) < 700*time.Millisecond {
		c, err := net.Dial("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil {
			log.Fatal(err)
		}
		_ = c.(*net.TCPConn).SetLinger(0) // leave no port in TIME_WAIT
		c.Close()
		n++
	}
	return float64(n) / time.Since(began).Seconds()
}
