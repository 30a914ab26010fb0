package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log"
	"runtime/debug"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/proxy/rules"
)

// sizes are the numbers of Services one endpoint change is measured at.
var sizes = []int{1000, 5000, 45000}

// perTurn is how many changes of one size are measured in a row.
const perTurn = 20

// flow is a cluster of one size whose last Service changes, and what was seen.
type flow struct {
	services int
	*bed
	news int
	// probe is a table of our own of the same size, changed with nothing
	// but a netlink message: what the kernel alone takes.
	probe *nft.Netlink
	took  []time.Duration
	bare  []time.Duration
}

// latency runs clusters of all sizes side by side and changes their last
// Service's endpoints between two and three in turns, so that what else the
// machine does falls on all sizes alike. The kernel tells of every change.
func latency() {
	// The collector of this process must not fall on what is measured.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var flows []*flow
	for _, n := range sizes {
		f := &flow{services: n, bed: newBed(n, 2)}
		defer f.ns.Close()
		f.run()
		defer f.stop()
		inNS(f.ns, f.subscribe)
		// Not beside the proxy's: that would see its table changed by others.
		own := newNS()
		defer own.Close()
		inNS(own, f.open)
		defer f.probe.Close()
		defer unix.Close(f.news)
		flows = append(flows, f)
	}
	time.Sleep(10 * time.Second) // the proxies trim their memory after the start
	for turn := range *changes / perTurn {
		for i := range flows {
			f := flows[(i+turn)%len(flows)]
			f.turn()
			for i := range perTurn {
				f.bare = append(f.bare, f.write(i))
			}
		}
	}
	report(flows)
}

// subscribe listens to what the kernel tells of its tables.
func (f *flow) subscribe() {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)})
	}
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10})
	}
	if err == nil {
		// The tables of the other family may still be written meanwhile.
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
	}
	if err != nil {
		log.Fatal("listening to the kernel: ", err)
	}
	f.news = fd
}

// open makes the probe's table.
func (f *flow) open() {
	var err error
	if f.probe, err = nft.Open(); err == nil {
		err = f.fill()
	}
	if err != nil {
		log.Fatal("making a table: ", err)
	}
}

const probeTable = "probe"

// fill makes a map as large as the proxy's.
func (f *flow) fill() error {
	tx := nft.NewTx(model.V4, probeTable)
	tx.Add(nft.Op{Verb: nft.AddTable})
	rules.Layout{Family: model.V4, MarkBit: 1 << 14}.Build(tx)
	shape := model.Endpoints.Shape(model.V4)
	var rows []byte
	for i := range f.services {
		for e := range 2 {
			rows = append(rows, probeRow(i, e)...)
		}
	}
	tx.Add(nft.Op{Verb: nft.AddRows, Name: shape.Name, Shape: shape, Rows: rows})
	return f.probe.Apply(tx)
}

// probeRow sends a Service's index to an address.
func probeRow(service, index int) []byte {
	row := []byte{10, 96 + byte(service>>16), byte(service >> 8), byte(service), 6, 0, 0, 0, 0, 80, 0, 0}
	row = binary.NativeEndian.AppendUint32(row, uint32(index))
	return append(row, 11, 0, byte(service>>8), byte(service), 31, 144, 0, 0)
}

// write adds a row to the probe's table, or takes it away, and waits for the
// kernel's answer.
func (f *flow) write(i int) time.Duration {
	shape, row, verb := model.Endpoints.Shape(model.V4), probeRow(f.services-1, 2), nft.AddRows
	if i%2 == 1 {
		row, verb = row[:shape.Key], nft.DeleteRows
	}
	tx := nft.NewTx(model.V4, probeTable)
	tx.Add(nft.Op{Verb: verb, Name: shape.Name, Shape: shape, Rows: row})
	at := time.Now()
	if err := f.probe.Apply(tx); err != nil {
		log.Fatal(err)
	}
	return time.Since(at)
}

// turn measures some changes in a row.
func (f *flow) turn() {
	for i := range perTurn {
		at := time.Now()
		f.api.change(f.services-1, 2+(i+1)%2)
		f.await(i%2 == 0)
		f.took = append(f.took, time.Since(at))
		time.Sleep(time.Millisecond)
	}
}

// await reads the kernel's news until the endpoint has come or gone and the
// whole batch is in force.
func (f *flow) await(comes bool) {
	want, set := uint16(unix.NFT_MSG_DELSETELEM), []byte(model.Endpoints.Shape(model.V4).Name+"\x00")
	if comes {
		want = unix.NFT_MSG_NEWSETELEM
	}
	buf, seen := make([]byte, 64<<10), false
	for {
		n, _, err := unix.Recvfrom(f.news, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			log.Fatalf("%d Services: the kernel does not tell of the change: %v", f.services, err)
		}
		for m := buf[:n]; len(m) >= 20; {
			size := int(binary.NativeEndian.Uint32(m))
			if size < 20 || size > len(m) {
				break
			}
			typ := binary.NativeEndian.Uint16(m[4:]) &^ (unix.NFNL_SUBSYS_NFTABLES << 8)
			seen = seen || typ == want && bytes.Contains(m[:size], set)
			if typ == unix.NFT_MSG_NEWGEN && seen {
				return
			}
			m = m[min(len(m), (size+3)/4*4):]
		}
	}
}

func report(flows []*flow) {
	fmt.Println("\n| Services (2 endpoints each) | slice event to kernel: p50 | p90 | p99 | worst | a bare batch of one row: p50 | p99 |")
	fmt.Println("|---|---|---|---|---|---|---|")
	for _, f := range flows {
		fmt.Printf("| %d | %s | %s | %s | %s | %s | %s |\n", f.services, us(quantile(f.took, 0.5)), us(quantile(f.took, 0.9)),
			us(quantile(f.took, 0.99)), us(slices.Max(f.took)),
			us(quantile(f.bare, 0.5)), us(quantile(f.bare, 0.99)))
		p := quantile(f.took, 0.99)
		check(p <= 5*time.Millisecond, fmt.Sprintf("one endpoint change at %d Services, p99", f.services), "5 ms", "%.2f ms",
			p.Seconds()*1e3)
	}
	small, large := flows[0], flows[len(flows)-1]
	ratio := func(q float64) float64 {
		return quantile(large.took, q).Seconds() / quantile(small.took, q).Seconds()
	}
	check(ratio(0.99) <= 1.2, fmt.Sprintf("the same, p99 at %d to p99 at %d Services", large.services, small.services), "1.2",
		"%.2f (p50 %.2f; a bare batch %.2f)", ratio(0.99), ratio(0.5),
		quantile(large.bare, 0.99).Seconds()/quantile(small.bare, 0.99).Seconds())
}
