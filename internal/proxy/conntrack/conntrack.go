// Package conntrack finds and removes entries of the kernel's connection
// tracking over netlink. What can be filtered is filtered by the kernel.
package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Flow is one tracked connection: where its first packet was sent, and who
// answers it.
type Flow struct {
	Proto       byte
	Source      netip.AddrPort
	Destination netip.AddrPort
	Answers     netip.AddrPort

	orig, id, zone []byte
}

// Filter says which flows are of interest.
type Filter struct {
	// Proto is the IP protocol, always set.
	Proto byte
	// Answers, if valid, is the address that answers.
	Answers netip.Addr
}

// Attributes of ctnetlink that are not in the unix package.
const (
	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaID         = 12
	ctaZone       = 18
	ctaFilter     = 25

	ctaTupleIP    = 1
	ctaTupleProto = 2
	ctaIPv4Src    = 1
	ctaIPv4Dst    = 2
	ctaIPv6Src    = 3
	ctaIPv6Dst    = 4
	ctaProtoNum   = 1
	ctaProtoSrc   = 2
	ctaProtoDst   = 3

	ctaFilterOrig  = 1
	ctaFilterReply = 2
	flagIPSrc      = 1 << 0
	flagProtoNum   = 1 << 3

	msgGet    = 1
	msgDelete = 2
)

// Remove deletes the flows of an address family (unix.AF_INET or AF_INET6)
// that pass filter and match, and returns how many there were.
func Remove(family uint8, filter Filter, match func(Flow) bool) (int, error) {
	flows, err := list(family, filter)
	if err != nil {
		return 0, err
	}
	n := 0
	var errs []error
	for _, f := range flows {
		if f.Proto != filter.Proto || !match(f) {
			continue
		}
		// A flow that has ended meanwhile is as good as removed.
		if err := remove(family, f); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("removing the tracked flow from %s to %s: %w", f.Source, f.Destination, err))
			continue
		}
		n++
	}
	return n, errors.Join(errs...)
}

func request(msg int, flags int, family uint8) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|msg, flags)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return req
}

// query asks for the flows that pass a filter.
func query(family uint8, filter Filter) *nl.NetlinkRequest {
	req := request(msgGet, unix.NLM_F_DUMP, family)
	orig := nl.NewRtAttr(ctaTupleOrig|unix.NLA_F_NESTED, nil)
	orig.AddRtAttr(ctaTupleProto|unix.NLA_F_NESTED, nil).AddRtAttr(ctaProtoNum, []byte{filter.Proto})
	req.AddData(orig)
	replyFlags := uint32(0)
	if filter.Answers.IsValid() {
		replyFlags = flagIPSrc
		src := uint16(ctaIPv4Src)
		if filter.Answers.Is6() {
			src = ctaIPv6Src
		}
		reply := nl.NewRtAttr(ctaTupleReply|unix.NLA_F_NESTED, nil)
		reply.AddRtAttr(ctaTupleIP|unix.NLA_F_NESTED, nil).AddRtAttr(int(src), filter.Answers.AsSlice())
		req.AddData(reply)
	}
	f := nl.NewRtAttr(ctaFilter|unix.NLA_F_NESTED, nil)
	f.AddRtAttr(ctaFilterOrig, nl.Uint32Attr(flagProtoNum))
	f.AddRtAttr(ctaFilterReply, nl.Uint32Attr(replyFlags))
	req.AddData(f)
	return req
}

// list asks for flows. A dump that the kernel says was disturbed still holds
// what it holds: later changes ask again.
func list(family uint8, filter Filter) ([]Flow, error) {
	res, err := query(family, filter).Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil && !errors.Is(err, unix.EINTR) && len(res) == 0 {
		return nil, fmt.Errorf("listing tracked flows: %w", err)
	}
	out := make([]Flow, 0, len(res))
	for _, m := range res {
		if len(m) > nl.SizeofNfgenmsg {
			out = append(out, parse(m[nl.SizeofNfgenmsg:]))
		}
	}
	return out, nil
}

// deletion asks to delete one flow: this very one, if another has begun since
// with the same addresses.
func deletion(family uint8, f Flow) *nl.NetlinkRequest {
	req := request(msgDelete, unix.NLM_F_ACK, family)
	req.AddData(nl.NewRtAttr(ctaTupleOrig|unix.NLA_F_NESTED, f.orig))
	if f.id != nil {
		req.AddData(nl.NewRtAttr(ctaID, f.id))
	}
	if f.zone != nil {
		req.AddData(nl.NewRtAttr(ctaZone, f.zone))
	}
	return req
}

func remove(family uint8, f Flow) error {
	_, err := deletion(family, f).Execute(unix.NETLINK_NETFILTER, 0)
	return err
}

func parse(b []byte) Flow {
	var f Flow
	each(b, func(t uint16, d []byte) {
		switch t {
		case ctaTupleOrig:
			f.orig = d
			f.Proto, f.Source, f.Destination = tuple(d)
		case ctaTupleReply:
			_, f.Answers, _ = tuple(d)
		case ctaID:
			f.id = d
		case ctaZone:
			f.zone = d
		}
	})
	return f
}

func tuple(b []byte) (proto byte, src, dst netip.AddrPort) {
	var sa, da netip.Addr
	var sp, dp uint16
	each(b, func(t uint16, d []byte) {
		each(d, func(in uint16, v []byte) {
			switch {
			case t == ctaTupleIP && (in == ctaIPv4Src || in == ctaIPv6Src):
				sa, _ = netip.AddrFromSlice(v)
			case t == ctaTupleIP && (in == ctaIPv4Dst || in == ctaIPv6Dst):
				da, _ = netip.AddrFromSlice(v)
			case t == ctaTupleProto && in == ctaProtoNum && len(v) > 0:
				proto = v[0]
			case t == ctaTupleProto && in == ctaProtoSrc && len(v) > 1:
				sp = binary.BigEndian.Uint16(v)
			case t == ctaTupleProto && in == ctaProtoDst && len(v) > 1:
				dp = binary.BigEndian.Uint16(v)
			}
		})
	})
	return proto, netip.AddrPortFrom(sa, sp), netip.AddrPortFrom(da, dp)
}

// each walks netlink attributes.
func each(b []byte, f func(typ uint16, data []byte)) {
	for len(b) >= 4 {
		size := int(binary.NativeEndian.Uint16(b))
		if size < 4 || size > len(b) {
			return
		}
		f(binary.NativeEndian.Uint16(b[2:])&0x3fff, b[4:size])
		b = b[min(len(b), (size+3)/4*4):]
	}
}
