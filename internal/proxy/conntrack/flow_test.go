package conntrack

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// attributes of a tuple, as the kernel writes them.
func tupleOf(typ int, proto byte, src, dst netip.AddrPort) *nl.RtAttr {
	from, to := ctaIPv4Src, ctaIPv4Dst
	if src.Addr().Is6() {
		from, to = ctaIPv6Src, ctaIPv6Dst
	}
	t := nl.NewRtAttr(typ|unix.NLA_F_NESTED, nil)
	ip := t.AddRtAttr(ctaTupleIP|unix.NLA_F_NESTED, nil)
	ip.AddRtAttr(from, src.Addr().AsSlice())
	ip.AddRtAttr(to, dst.Addr().AsSlice())
	p := t.AddRtAttr(ctaTupleProto|unix.NLA_F_NESTED, nil)
	p.AddRtAttr(ctaProtoNum, []byte{proto})
	p.AddRtAttr(ctaProtoSrc, []byte{byte(src.Port() >> 8), byte(src.Port())})
	p.AddRtAttr(ctaProtoDst, []byte{byte(dst.Port() >> 8), byte(dst.Port())})
	return t
}

func message(attributes ...*nl.RtAttr) (b []byte) {
	for _, a := range attributes {
		b = append(b, a.Serialize()...)
	}
	return b
}

// TestParse: a flow's two directions; who answers is the source of the reply,
// not where the packet was sent.
func TestParse(t *testing.T) {
	for _, c := range []struct {
		why                          string
		source, destination, answers string
	}{
		{"IPv4, translated", "10.0.0.9:40000", "10.96.0.1:53", "10.0.0.5:5353"},
		{"IPv6", "[fd00::9]:40000", "[fd00:96::1]:53", "[fd00::5]:5353"},
	} {
		src, dst, ans := netip.MustParseAddrPort(c.source), netip.MustParseAddrPort(c.destination), netip.MustParseAddrPort(c.answers)
		b := message(tupleOf(ctaTupleOrig, unix.IPPROTO_UDP, src, dst), tupleOf(ctaTupleReply, unix.IPPROTO_UDP, ans, src),
			nl.NewRtAttr(ctaID, []byte{1, 2, 3, 4}), nl.NewRtAttr(ctaZone, []byte{0, 9}), nl.NewRtAttr(99, []byte("later kernels")))
		f := parse(b)
		if f.Proto != unix.IPPROTO_UDP || f.Source != src || f.Destination != dst || f.Answers != ans {
			t.Errorf("%s: %+v", c.why, f)
		}
		if !bytes.Equal(f.id, []byte{1, 2, 3, 4}) || !bytes.Equal(f.zone, []byte{0, 9}) {
			t.Errorf("%s: id %x, zone %x", c.why, f.id, f.zone)
		}
		// What deletes the flow repeats its original tuple, ID and zone.
		sent := hex.EncodeToString(deletion(unix.AF_INET, f).Serialize()[unix.SizeofNlMsghdr:])
		for _, part := range [][]byte{f.orig, f.id, f.zone} {
			if !strings.Contains(sent, hex.EncodeToString(part)) {
				t.Errorf("%s: the deletion %s lacks %x", c.why, sent, part)
			}
		}
		for n := range b { // a message that was cut is read as far as it goes
			parse(b[:n])
		}
	}
	if f := parse(nil); f.Source.IsValid() || f.id != nil {
		t.Errorf("an empty message: %+v", f)
	}
}

// FuzzParse: whatever the kernel sends, reading it ends.
func FuzzParse(f *testing.F) {
	a := netip.MustParseAddrPort("10.0.0.1:1")
	f.Add(message(tupleOf(ctaTupleOrig, 6, a, a)))
	f.Add([]byte{4, 0, 1, 0x80, 3, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		flow := parse(b)
		if len(flow.orig) > len(b) || len(flow.id) > len(b) {
			t.Fatalf("%+v is longer than its message", flow)
		}
	})
}

// TestQuery: what the kernel is asked to filter by. A filter of flags that are
// not set passes everything, so the flags are what counts.
func TestQuery(t *testing.T) {
	for _, c := range []struct {
		why     string
		answers string
		src     uint16 // attribute of the answering address, 0 for none
		flags   byte
	}{
		{"protocol alone", "", 0, 0},
		{"IPv4 address that answers", "10.0.0.5", ctaIPv4Src, flagIPSrc},
		{"IPv6 address that answers", "fd00::5", ctaIPv6Src, flagIPSrc},
	} {
		filter := Filter{Proto: unix.IPPROTO_UDP}
		if c.answers != "" {
			filter.Answers = netip.MustParseAddr(c.answers)
		}
		req := query(unix.AF_INET, filter)
		if req.Type != unix.NFNL_SUBSYS_CTNETLINK<<8|msgGet || req.Flags&unix.NLM_F_DUMP != unix.NLM_F_DUMP {
			t.Errorf("%s: message %d with flags %x", c.why, req.Type, req.Flags)
		}
		got := map[string][]byte{}
		each(req.Serialize()[unix.SizeofNlMsghdr+nl.SizeofNfgenmsg:], func(top uint16, d []byte) {
			each(d, func(typ uint16, v []byte) {
				switch {
				case top == ctaFilter && typ == ctaFilterOrig:
					got["orig flags"] = v
				case top == ctaFilter && typ == ctaFilterReply:
					got["reply flags"] = v
				case top == ctaTupleOrig && typ == ctaTupleProto:
					each(v, func(_ uint16, v []byte) { got["proto"] = v })
				case top == ctaTupleReply && typ == ctaTupleIP:
					each(v, func(in uint16, v []byte) {
						if in == c.src {
							got["answers"] = v
						}
					})
				}
			})
		})
		if len(got["proto"]) == 0 || got["proto"][0] != unix.IPPROTO_UDP || got["orig flags"][0] != flagProtoNum ||
			got["reply flags"][0] != c.flags || !bytes.Equal(got["answers"], filter.Answers.AsSlice()) {
			t.Errorf("%s: %v", c.why, got)
		}
	}
}
