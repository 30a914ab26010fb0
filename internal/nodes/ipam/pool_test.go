package ipam

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// slow is the obvious allocator: a list of all ranges and a map of taken ones.
type slow struct {
	all   []netip.Prefix
	taken map[netip.Prefix]bool
	next  int
}

func (s *slow) allocate() (netip.Prefix, bool) {
	for k := range s.all {
		i := (s.next + k) % len(s.all)
		if !s.taken[s.all[i]] {
			s.taken[s.all[i]] = true
			s.next = (i + 1) % len(s.all)
			return s.all[i], true
		}
	}
	return netip.Prefix{}, false
}

func newSlow(cluster netip.Prefix, nodeLen int) *slow {
	s := &slow{taken: map[netip.Prefix]bool{}}
	at := netip.PrefixFrom(cluster.Masked().Addr(), nodeLen)
	for cluster.Contains(at.Addr()) {
		s.all = append(s.all, at)
		addr := at.Addr()
		raw := addr.As16()
		step := addr.BitLen() - nodeLen
		for i, add := 15-step/8, uint(1)<<(step%8); i >= 0 && add > 0; i-- {
			sum := uint(raw[i]) + add
			raw[i], add = byte(sum), sum>>8
		}
		next := netip.AddrFrom16(raw)
		if addr.Is4() {
			next = next.Unmap()
		}
		if !next.IsValid() || next.Compare(addr) <= 0 {
			break
		}
		at = netip.PrefixFrom(next, nodeLen)
	}
	return s
}

func TestPoolEqualsTheObviousOne(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for _, c := range []struct {
		cluster string
		nodeLen int
	}{{"10.244.0.0/16", 24}, {"10.0.0.0/30", 32}, {"10.1.0.0/20", 27}, {"fd00:10::/56", 64}, {"fd00:10::/60", 67}, {"192.168.0.0/24", 24},
		{"10.0.0.0/14", 26}} {
		cluster := netip.MustParsePrefix(c.cluster)
		fast, err := newPool(cluster, c.nodeLen)
		if err != nil {
			t.Fatal(err)
		}
		obvious := newSlow(cluster, c.nodeLen)
		if fast.Total() != len(obvious.all) {
			t.Fatalf("%s: %d ranges, want %d", c.cluster, fast.Total(), len(obvious.all))
		}
		steps := 3000
		for range steps {
			switch p := obvious.all[r.IntN(len(obvious.all))]; r.IntN(4) {
			case 0, 1:
				want, ok := obvious.allocate()
				got, err := fast.Allocate()
				if ok != (err == nil) || got != want || !ok && !errors.Is(err, ErrExhausted) {
					t.Fatalf("%s: allocated %v (%v), want %v", c.cluster, got, err, want)
				}
				if ok && !fast.Contains(got) {
					t.Fatalf("%s does not contain its own range %s", c.cluster, got)
				}
			case 2:
				obvious.taken[p] = true
				if err := fast.Occupy(p); err != nil {
					t.Fatal(err)
				}
			case 3:
				delete(obvious.taken, p)
				if err := fast.Release(p); err != nil {
					t.Fatal(err)
				}
			}
			if fast.Used() != len(obvious.taken) {
				t.Fatalf("%s: %d taken, want %d", c.cluster, fast.Used(), len(obvious.taken))
			}
		}
	}
}

func TestPoolRefusals(t *testing.T) {
	for _, c := range []struct {
		cluster string
		nodeLen int
	}{{"10.244.0.0/16", 8}, {"10.244.0.0/16", 33}, {"fd00::/40", 64}} {
		if _, err := newPool(netip.MustParsePrefix(c.cluster), c.nodeLen); err == nil {
			t.Errorf("%s with /%d was taken", c.cluster, c.nodeLen)
		}
	}
	p, _ := newPool(netip.MustParsePrefix("10.244.0.0/16"), 24)
	if err := p.Occupy(netip.MustParsePrefix("10.245.0.0/24")); err == nil {
		t.Error("a range outside the cluster's was taken")
	}
}

func BenchmarkAllocateRelease(b *testing.B) {
	p, err := newPool(netip.MustParsePrefix("10.0.0.0/8"), 24)
	if err != nil {
		b.Fatal(err)
	}
	for range p.Total() - 1 {
		if _, err := p.Allocate(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		c, err := p.Allocate()
		if err != nil {
			b.Fatal(err)
		}
		if err := p.Release(c); err != nil {
			b.Fatal(err)
		}
	}
}
