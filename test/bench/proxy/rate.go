package main

import (
	"fmt"
	"log"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/proxy/model"
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
	inNS(b.ns, func() {
		plain(addr)
		compare(services, addr)
	})
}

// plainIP is translated by one rule of its own.
const plainIP = "10.200.0.1"

// plain makes a table with the least that translates an address: what remains
// between it and a direct connection is the kernel's translation itself.
func plain(addr string) {
	k, err := nft.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer k.Close()
	// After the proxy's chains, which end at their own translations.
	tx := nft.NewTx(model.V4, "plain")
	tx.Add(nft.Op{Verb: nft.AddTable})
	tx.Add(nft.Op{Verb: nft.AddChain, Name: "output", Hook: &nft.Hook{Num: unix.NF_INET_LOCAL_OUT, Priority: -99}})
	const reg, port = unix.NFT_REG32_00, unix.NFT_REG32_01
	tx.Add(nft.Op{Verb: nft.AddRule, Name: "output", Rule: []expr.Any{
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: netip.MustParseAddr(plainIP).AsSlice()},
		&expr.Immediate{Register: reg, Data: netip.MustParseAddr(addr).AsSlice()},
		&expr.Immediate{Register: port, Data: []byte{8080 >> 8, 8080 & 255}},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: reg, RegProtoMin: port, Specified: true}}})
	if err := k.Apply(tx); err != nil {
		log.Fatal(err)
	}
}

// rounds is how often all ways are taken in turns, each for a short while.
const rounds = 60

// compare takes turns between direct connections, those through a cluster IP
// and those through the plain rule, forth and back, and judges by the median
// of the ratios of neighbours: what slows the machine slows both.
func compare(services int, addr string) {
	ways := []struct {
		host string
		port int
	}{{addr, 8080}, {clusterIP(0), 80}, {plainIP, 80}}
	rates := [3][]float64{}
	var service, rule []float64
	for i := range rounds {
		var of [3]float64
		for j := range ways {
			if i%2 == 1 {
				j = len(ways) - 1 - j
			}
			of[j] = dial(ways[j].host, ways[j].port)
			rates[j] = append(rates[j], of[j])
		}
		service, rule = append(service, of[1]/of[0]), append(rule, of[2]/of[0])
	}
	median := func(of []float64) float64 { return quantile(of, 0.5) }
	fmt.Printf("\nnew connections a second at %d Services, medians of %d turns: direct %.0f, through a cluster IP %.0f, through one "+
		"plain rule %.0f\n", services, rounds,
		median(rates[0]), median(rates[1]), median(rates[2]))
	fmt.Printf("ratio of turns side by side: cluster IP %s, plain rule %s\n", spread(service), spread(rule))
	check(median(service) >= 0.95, fmt.Sprintf("new connections through a cluster IP at %d Services, to direct ones", services), "0.95",
		"%s (one plain rule: %.3f)", spread(service), median(rule))
}

// spread prints the median of a sample, its quartiles and its ends.
func spread(of []float64) string {
	return fmt.Sprintf("%.3f (half of them %.3f to %.3f, all %.3f to %.3f)", quantile(of, 0.5), quantile(of, 0.25), quantile(of, 0.75),
		slices.Min(of), slices.Max(of))
}

// dial connects one after the other for a while and returns how many a second.
func dial(host string, port int) float64 {
	n, began := 0, time.Now()
	for time.Since(began) < 150*time.Millisecond {
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
