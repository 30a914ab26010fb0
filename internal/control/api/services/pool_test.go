package services

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

// memory is a ledger in memory; foreign holds items that appear taken only when
// claimed, as if another server had them.
type memory map[uint16]entry

func (m memory) Claim(_ context.Context, item uint16, who owner, dryRun bool) error {
	if _, ok := m[item]; ok {
		return errTaken
	}
	if !dryRun {
		m[item] = entry{Owner: who}
	}
	return nil
}

func (m memory) Release(_ context.Context, item uint16, who owner) error {
	if m[item].Owner == who {
		delete(m, item)
	}
	return nil
}

func (m memory) Taken(context.Context) (map[uint16]entry, error) {
	out := map[uint16]entry{}
	for k, v := range m {
		out[k] = v
	}
	return out, nil
}

// TestPoolNeverRepeats drives a pool, with another server working on the same
// ledger behind its back, and checks that nothing is handed out twice, that
// everything free is found in the end, and that full is said only when it is
// true.
func TestPoolNeverRepeats(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		book := memory{}
		size := rapid.Uint64Range(1, 40).Draw(t, "size")
		offset := rapid.Uint64Range(0, size-1).Draw(t, "offset")
		s := space[uint16]{size: size, offset: offset, at: func(i uint64) uint16 { return uint16(100 + i) }}
		p := newPool[uint16](book)
		seed := rapid.Uint64().Draw(t, "seed")
		rng := rand.New(rand.NewPCG(seed, seed))
		p.rand = rng.Uint64N
		mine, other := owner{"a", "mine"}, owner{"b", "other"}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			item := uint16(100 + rng.Uint64N(size))
			switch rng.IntN(5) {
			case 0: // another server takes something
				if err := book.Claim(context.Background(), item, other, false); err != nil && !errors.Is(err, errTaken) {
					t.Fatal(err)
				}
			case 1: // and gives something back
				if err := book.Release(context.Background(), item, other); err != nil {
					t.Fatal(err)
				}
			case 2:
				if err := p.release(context.Background(), item, mine); err != nil {
					t.Fatal(err)
				}
			default:
				before := len(book)
				got, err := p.next(context.Background(), s, mine, false)
				switch {
				case err == nil && len(book) != before+1:
					t.Fatalf("handed out %d, which was taken", got)
				case errors.Is(err, errFull) && uint64(before) < size:
					t.Fatalf("said full with %d of %d taken", before, size)
				case err != nil && !errors.Is(err, errFull):
					t.Fatal(err)
				}
			}
		}
	})
}

// TestFind compares find with listing every free index.
func TestFind(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Uint64Range(1, 60).Draw(t, "size")
		offset := rapid.Uint64Range(0, size).Draw(t, "offset")
		start := rapid.Uint64Range(0, 100).Draw(t, "start")
		taken := map[uint64]bool{}
		for range rapid.IntRange(0, 80).Draw(t, "taken") {
			taken[rapid.Uint64Range(0, size-1).Draw(t, "item")] = true
		}
		upper := false
		for i := offset; i < size; i++ {
			upper = upper || !taken[i]
		}
		got, ok := find(size, offset, start, func(i uint64) bool { return !taken[i] })
		switch {
		case ok != (uint64(len(taken)) < size):
			t.Fatalf("found %v with %d of %d taken", ok, len(taken), size)
		case ok && (taken[got] || got >= size):
			t.Fatalf("found %d, which is taken", got)
		case ok && upper && got < offset:
			t.Fatalf("found %d in the lower band while the upper has room", got)
		}
	})
}

func TestAddressSpace(t *testing.T) {
	for _, c := range []struct {
		cidr         string
		size, offset uint64
		first, last  string
		in, out      string
	}{
		{"10.0.0.0/24", 254, 16, "10.0.0.1", "10.0.0.254", "10.0.0.254", "10.0.0.255"},
		{"10.96.0.0/12", 1<<20 - 2, 256, "10.96.0.1", "10.111.255.254", "10.100.0.0", "10.96.0.0"},
		{"10.0.0.0/30", 2, 0, "10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.3"},
		{"10.0.0.0/31", 0, 0, "10.0.0.1", "", "", "10.0.0.0"},
		{"10.0.0.4/24", 254, 16, "10.0.0.1", "10.0.0.254", "10.0.0.1", "10.0.1.1"},
		{"fd00::/120", 255, 16, "fd00::1", "fd00::ff", "fd00::ff", "fd00::"},
		{"fd00::/64", 1<<62 - 1, 256, "fd00::1", "", "fd00::ffff:ffff:ffff:ffff", "fd00:0:0:1::"},
	} {
		p := netip.MustParsePrefix(c.cidr)
		s := addressSpace(p)
		if s.size != c.size || s.offset != c.offset || firstIP(p).String() != c.first {
			t.Errorf("%s: size %d, offset %d, first %s; want %d, %d, %s", c.cidr, s.size, s.offset, firstIP(p), c.size, c.offset, c.first)
		}
		if c.last != "" && s.at(s.size-1).String() != c.last {
			t.Errorf("%s: last is %s, want %s", c.cidr, s.at(s.size-1), c.last)
		}
		if c.in != "" && !usable(p, netip.MustParseAddr(c.in)) {
			t.Errorf("%s: %s is not usable", c.cidr, c.in)
		}
		if usable(p, netip.MustParseAddr(c.out)) {
			t.Errorf("%s: %s is usable", c.cidr, c.out)
		}
	}
	if s := DefaultNodePorts.space(); s.at(s.offset) != 30086 || s.at(s.size-1) != 32767 {
		t.Errorf("dynamic node ports run from %d to %d", s.at(s.offset), s.at(s.size-1))
	}
}

func TestReconcile(t *testing.T) {
	now := time.Unix(10000, 0)
	a, b := owner{"ns", "a"}, owner{"ns", "b"}
	old, young := now.Add(-leakAge), now.Add(-leakAge+time.Second)
	for name, c := range map[string]struct {
		book      map[int]entry
		uses      []use[int]
		fixes     []fix[int]
		conflicts int
	}{
		"in order":              {book: map[int]entry{1: {Owner: a, Created: old}}, uses: []use[int]{{1, a}}},
		"leaked":                {book: map[int]entry{1: {Owner: a, Created: old}}, fixes: []fix[int]{{item: 1, release: &a}}},
		"perhaps being created": {book: map[int]entry{1: {Owner: a, Created: young}}},
		"lost":                  {uses: []use[int]{{1, a}}, fixes: []fix[int]{{item: 1, claim: &a}}},
		"wrong owner": {book: map[int]entry{1: {Owner: b, Created: young}}, uses: []use[int]{{1, a}},
			fixes: []fix[int]{{item: 1, release: &b}, {item: 1, claim: &a}}},
		"somebody else's":       {book: map[int]entry{1: {Created: old}}},
		"two services":          {book: map[int]entry{1: {Owner: a, Created: old}}, uses: []use[int]{{1, a}, {1, b}}, conflicts: 1},
		"two, younger recorded": {book: map[int]entry{1: {Owner: b, Created: old}}, uses: []use[int]{{1, a}, {1, b}}, conflicts: 1},
	} {
		fixes, conflicts := reconcile(c.book, c.uses, now)
		same := len(fixes) == len(c.fixes)
		for i := 0; same && i < len(fixes); i++ {
			same = fixes[i].item == c.fixes[i].item && equal(fixes[i].claim, c.fixes[i].claim) &&
				equal(fixes[i].release, c.fixes[i].release)
		}
		if !same || len(conflicts) != c.conflicts {
			t.Errorf("%s: got %+v and %d conflicts, want %+v and %d", name, fixes, len(conflicts), c.fixes, c.conflicts)
		}
	}
}

// TestApply checks that a pass counts what it really changed.
func TestApply(t *testing.T) {
	a, b := owner{"ns", "a"}, owner{"ns", "b"}
	book := memory{1: {Owner: a}, 2: {Owner: b}}
	var total Repairs
	err := apply(context.Background(), newPool[uint16](book), []fix[uint16]{
		{item: 1, release: &a}, {item: 2, claim: &a}, {item: 3, claim: &a},
	}, &total)
	if err != nil || total != (Repairs{Claimed: 1, Released: 1}) || len(book) != 2 || book[3].Owner != a || book[2].Owner != b {
		t.Errorf("got %+v, %v, book %v", total, err, book)
	}
}

func TestResolveFamilies(t *testing.T) {
	const four, six = v1.IPv4Protocol, v1.IPv6Protocol
	policy := func(p v1.IPFamilyPolicy) *v1.IPFamilyPolicy { return &p }
	single, prefer, require := policy(v1.IPFamilyPolicySingleStack), policy(v1.IPFamilyPolicyPreferDualStack),
		policy(v1.IPFamilyPolicyRequireDualStack)
	type fams = []v1.IPFamily
	svc := func(p *v1.IPFamilyPolicy, f fams, ips ...string) v1.ServiceSpec {
		s := v1.ServiceSpec{Type: v1.ServiceTypeClusterIP, IPFamilyPolicy: p, IPFamilies: f, ClusterIPs: ips,
			Selector: map[string]string{"a": "b"}}
		if len(ips) > 0 {
			s.ClusterIP = ips[0]
		}
		return s
	}
	bare := func(s v1.ServiceSpec) v1.ServiceSpec { s.Selector = nil; return s }
	for name, c := range map[string]struct {
		spec   v1.ServiceSpec
		old    *v1.ServiceSpec
		has    fams
		policy v1.IPFamilyPolicy
		want   fams
		ips    int
		err    string
	}{
		"plain":            {spec: svc(nil, nil), has: fams{four}, policy: *single, want: fams{four}},
		"plain on dual":    {spec: svc(nil, nil), has: fams{six, four}, policy: *single, want: fams{six}},
		"second family":    {spec: svc(nil, fams{six}), has: fams{four, six}, policy: *single, want: fams{six}},
		"prefer on single": {spec: svc(prefer, nil), has: fams{four}, policy: *prefer, want: fams{four}},
		"prefer on dual":   {spec: svc(prefer, nil), has: fams{four, six}, policy: *prefer, want: fams{four, six}},
		"require on dual":  {spec: svc(require, fams{six}), has: fams{four, six}, policy: *require, want: fams{six, four}},
		"require on single": {spec: svc(require, nil), has: fams{four},
			err: "this cluster is not configured for dual-stack services"},
		"absent family":         {spec: svc(nil, fams{six}), has: fams{four}, err: "not configured on this cluster"},
		"family of the address": {spec: svc(nil, nil, "fd00::5"), has: fams{four, six}, policy: *single, want: fams{six}, ips: 1},
		"address against family": {spec: svc(nil, fams{four}, "fd00::5"), has: fams{four, six},
			err: "expected an IPv4 value as indicated by `ipFamilies[0]`"},
		"two families, no policy": {spec: svc(nil, fams{four, six}), has: fams{four, six},
			err: "must be RequireDualStack or PreferDualStack when multiple 'ipFamilies' are specified"},
		"headless":                 {spec: svc(nil, nil, "None"), has: fams{four}, policy: *single, want: fams{four}, ips: 1},
		"headless, no selector":    {spec: bare(svc(nil, nil, "None")), has: fams{four}, policy: *require, want: fams{four, six}, ips: 1},
		"headless v6, no selector": {spec: bare(svc(nil, nil, "None")), has: fams{six}, policy: *require, want: fams{six, four}, ips: 1},
		"upgrade": {spec: svc(prefer, fams{four}, "10.0.0.1"), old: new(svc(single, fams{four}, "10.0.0.1")),
			has: fams{four, six}, policy: *prefer, want: fams{four, six}, ips: 1},
		"downgrade": {spec: svc(single, fams{four, six}, "10.0.0.1", "fd00::1"),
			old: new(svc(require, fams{four, six}, "10.0.0.1", "fd00::1")),
			has: fams{four, six}, policy: *single, want: fams{four}, ips: 1},
		"silence keeps": {spec: svc(nil, nil, "10.0.0.1", "fd00::1"), old: new(svc(require, fams{four, six}, "10.0.0.1", "fd00::1")),
			has: fams{four, six}, policy: *require, want: fams{four, six}, ips: 2},
		"dropping the second silently": {spec: svc(prefer, fams{four, six}, "10.0.0.1"),
			old: new(svc(prefer, fams{four, six}, "10.0.0.1", "fd00::1")),
			has: fams{four, six}, err: "must be 'SingleStack' to release the secondary cluster IP"},
	} {
		s := &v1.Service{Spec: c.spec}
		var old *v1.Service
		if c.old != nil {
			old = &v1.Service{Spec: *c.old}
		}
		errs := resolveFamilies(s, old, c.has)
		if c.err != "" {
			if len(errs) != 1 || errs[0].Detail != c.err {
				t.Errorf("%s: got %v, want %q", name, errs, c.err)
			}
			continue
		}
		if len(errs) > 0 {
			t.Errorf("%s: %v", name, errs)
			continue
		}
		if *s.Spec.IPFamilyPolicy != c.policy || !equalSlices(s.Spec.IPFamilies, c.want) || len(s.Spec.ClusterIPs) != c.ips {
			t.Errorf("%s: got %s %v %v, want %s %v", name, *s.Spec.IPFamilyPolicy, s.Spec.IPFamilies, s.Spec.ClusterIPs, c.policy, c.want)
		}
	}
}

func equalSlices[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestCertain(t *testing.T) {
	if provesNotStored(errors.New("etcdserver: request timed out")) {
		t.Error("an unknown error proves nothing about what was stored")
	}
}

func BenchmarkNext(b *testing.B) {
	for _, used := range []int{0, 2000} {
		b.Run(map[int]string{0: "empty", 2000: "crowded"}[used], func(b *testing.B) {
			book := memory{}
			for i := range used {
				book[uint16(30086+i)] = entry{Owner: owner{"x", "x"}}
			}
			p := newPool[uint16](book)
			s, who := DefaultNodePorts.space(), owner{"ns", "svc"}
			b.ReportAllocs()
			for b.Loop() {
				n, err := p.next(context.Background(), s, who, false)
				if err != nil {
					b.Fatal(err)
				}
				if err := p.release(context.Background(), n, who); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
