package proxy

import (
	"errors"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables/expr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/testkit/netnstest"
	"github.com/berth-dev/berth/internal/testkit/testtimeout"
)

// history is a cluster that changes at random.
type history struct {
	plan
	rand     *rand.Rand
	services map[string]*corev1.Service
	slices   map[string]*discoveryv1.EndpointSlice
}

func newHistory(f model.Family, seed int64) *history {
	return &history{planOf(f), rand.New(rand.NewSource(seed)), map[string]*corev1.Service{}, map[string]*discoveryv1.EndpointSlice{}}
}

// step changes something and tells a writer's model.
func (h *history) step(m *model.Model) {
	c := cases[h.rand.Intn(len(cases))]
	switch h.rand.Intn(6) {
	case 0, 1:
		s := c.service(h.plan)
		if h.rand.Intn(3) == 0 {
			affine(s, h.plan)
		}
		h.services[s.Name] = s
		m.SetService(s)
	case 2:
		name := c.service(h.plan).Name
		delete(h.services, name)
		m.DeleteService(model.Name{Namespace: "ns", Name: name})
	case 3, 4:
		c.ends = nil
		for _, w := range []where{"a", "b", "far", "pod", "a/terminating", "b/unready", "far/zone-here"} {
			if h.rand.Intn(3) == 0 {
				c.ends = append(c.ends, w)
			}
		}
		s := c.slice(h.plan)
		s.Name = fmt.Sprint(s.Name, h.rand.Intn(2)) // slices overlap
		h.slices[s.Name] = s
		m.SetSlice(s)
	case 5:
		for name, s := range h.slices {
			delete(h.slices, name)
			m.DeleteSlice(s)
			break
		}
	}
}

// scratch is a model that saw only where the history has come to.
func (h *history) scratch() *model.Model {
	m := model.New(model.Config{Family: h.family, NodeName: nodeName})
	for _, s := range h.services {
		m.SetService(s)
	}
	for _, s := range h.slices {
		m.SetSlice(s)
	}
	return m
}

// check fails unless the kernel holds exactly what a model wants that saw
// only the end: adopting its table must change nothing.
func (h *history) check(t *testing.T, w *writer, when string) {
	t.Helper()
	if ok, err := w.image().intact(w.kernel); err != nil || !ok {
		t.Fatalf("%s: the table is not what was written (%v)", when, err)
	}
	again := h.writer(w.kernel)
	again.model = h.scratch()
	c, err := again.compare()
	if err != nil {
		t.Fatal(err)
	}
	if del, add := c.Count(h.family); del+add > 0 {
		t.Fatalf("%s: the kernel lacks %d rows and has %d too many", when, add, del)
	}
}

// compare is what adopting the table would change.
func (w *writer) compare() (*model.Changes, error) {
	chains, err := w.kernel.Chains(w.layout.Family, w.table)
	if err != nil {
		return nil, err
	}
	held, err := w.read(chains)
	if err != nil {
		return nil, err
	}
	if held == nil {
		return nil, errors.New("the table is not of this layout, or not complete")
	}
	return w.adopt(held), nil
}

// TestKernelsEqualModel compares after every batch, in both kernels.
func TestKernelsEqualModel(t *testing.T) {
	for _, f := range []model.Family{model.V4, model.V6} {
		for seed := range int64(testtimeout.Rounds(20, 4)) {
			h := newHistory(f, seed)
			w := h.writer(nft.NewFake())
			for i := range 60 {
				h.step(w.model)
				if _, err := w.sync(); err != nil {
					t.Fatalf("seed %d, step %d: %v", seed, i, err)
				}
				h.check(t, w, fmt.Sprintf("fake kernel, %s, seed %d, step %d", f, seed, i))
			}
		}
		ns := netnstest.New(t)
		err := netnstest.In(ns, func() error {
			k, err := nft.Open()
			if err != nil {
				return err
			}
			defer k.Close()
			for seed := range int64(testtimeout.Rounds(3, 1)) {
				h := newHistory(f, seed)
				w := h.writer(k)
				w.table = fmt.Sprint("berth-", seed)
				for i := range testtimeout.Rounds(80, 20) {
					h.step(w.model)
					if _, err := w.sync(); err != nil {
						return err
					}
					again := h.writer(k)
					again.model, again.table = h.scratch(), w.table
					c, err := again.compare()
					if err != nil {
						return err
					}
					if del, add := c.Count(f); del+add > 0 {
						return fmt.Errorf("%s, seed %d, step %d: %d rows lack, %d are too many", f, seed, i, add, del)
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal("real kernel: ", err)
		}
	}
}

// TestFailedWrites has the kernel refuse transactions at random: what it
// holds is right after the next one that it takes.
func TestFailedWrites(t *testing.T) {
	for seed := range int64(10) {
		h := newHistory(model.V4, seed)
		k := nft.NewFake()
		w := h.writer(k)
		k.Fail = func(*nft.Tx) error {
			if h.rand.Intn(3) == 0 {
				return syscall.ENOMEM
			}
			return nil
		}
		failed := 0
		for i := range 60 {
			h.step(w.model)
			if _, err := w.sync(); err != nil {
				if !errors.Is(err, syscall.ENOMEM) {
					t.Fatal(err)
				}
				failed++
				continue
			}
			h.check(t, w, fmt.Sprintf("seed %d, step %d", seed, i))
		}
		if failed == 0 {
			t.Fatal("no write failed")
		}
	}
}

// mortal is a kernel whose user dies before a certain transaction.
type mortal struct {
	nft.Kernel
	left int
}

var errDead = errors.New("the proxy is dead")

func (m *mortal) Apply(txs ...*nft.Tx) error {
	if m.left == 0 {
		return errDead
	}
	m.left--
	return m.Kernel.Apply(txs...)
}

// TestDeathBetweenBatches lets the proxy die before any of the transactions of
// a change, and start again: what the kernel holds is then what a proxy has
// written that never died. (Within a transaction: TestCutBatch.)
func TestDeathBetweenBatches(t *testing.T) {
	ns := netnstest.New(t)
	err := netnstest.In(ns, func() error {
		k, err := nft.Open()
		if err != nil {
			return err
		}
		defer k.Close()
		for seed, kernel := range []nft.Kernel{k, nft.NewFake(), nft.NewFake()} {
			if err := dieOften(newHistory(model.V4, int64(seed)), kernel); err != nil {
				return fmt.Errorf("seed %d: %w", seed, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func dieOften(h *history, k nft.Kernel) error {
	deaths, split := 0, 0
	w := h.writer(k)
	if _, err := w.sync(); err != nil {
		return err
	}
	for i := range 100 {
		m := &mortal{Kernel: k, left: h.rand.Intn(3)}
		w.kernel = m
		left := m.left
		h.step(w.model)
		_, err := w.sync()
		if err != nil && !errors.Is(err, errDead) {
			return err
		}
		if err != nil {
			deaths++
			if left > 0 {
				split++
			}
			w = h.writer(k)
			w.model = h.scratch()
			if res, err := w.sync(); err != nil || !res.adopted {
				return fmt.Errorf("step %d: the table is not adopted (%v)", i, err)
			}
		}
		again := h.writer(k)
		again.model = h.scratch()
		c, err := again.compare()
		if err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		if del, add := c.Count(h.family); del+add > 0 {
			return fmt.Errorf("step %d: %d rows lack, %d are too many", i, add, del)
		}
	}
	if deaths == 0 || split == 0 {
		return fmt.Errorf("%d deaths, %d of them amid a change: nothing was tried", deaths, split)
	}
	return nil
}

const killedChild = "BERTH_PROXY_KILLED_CHILD"

// TestMain also is the child that TestKill kills.
func TestMain(m *testing.M) {
	if os.Getenv(killedChild) != "" {
		writeForEver()
		return
	}
	os.Exit(m.Run())
}

// generation is a Service all of whose endpoints have the same port.
func generation(i int) *discoveryv1.EndpointSlice {
	s := slice("a", "10.244.0.10", "10.244.0.11", "10.244.0.12", "10.244.0.13", "10.244.0.14")
	for j := range s.Ports {
		p := int32(1 + i%60000)
		s.Ports[j].Port = &p
	}
	return s
}

func killWriter() (*writer, error) {
	k, err := nft.Open()
	if err != nil {
		return nil, err
	}
	w := planOf(model.V4).writer(k)
	w.model.SetService(svc("a", "10.96.0.1", 80, func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }))
	return w, nil
}

func writeForEver() {
	w, err := killWriter()
	for i := 0; err == nil; i++ {
		w.model.SetSlice(generation(i))
		if _, err = w.sync(); i == 0 {
			fmt.Println("began")
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// TestKill kills a process that writes as fast as it can, at random moments:
// the kernel holds one whole generation, and the next process adopts it.
func TestKill(t *testing.T) {
	ns := netnstest.New(t)
	r := rand.New(rand.NewSource(1))
	for round := range 8 {
		var child *exec.Cmd
		err := netnstest.In(ns, func() error {
			runtime.LockOSThread()
			child = exec.Command(os.Args[0])
			child.Env = append(os.Environ(), killedChild+"=1")
			out, err := child.StdoutPipe()
			if err != nil {
				return err
			}
			if err := child.Start(); err != nil {
				return err
			}
			_, err = out.Read(make([]byte, 1)) // it writes
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(r.Intn(20000)) * time.Microsecond) // the moment is what is tried
		_ = child.Process.Kill()
		_ = child.Wait()
		err = netnstest.In(ns, func() error {
			w, err := killWriter()
			if err != nil {
				return err
			}
			ports := map[string]bool{}
			rows := 0
			if err := w.kernel.Rows(model.V4, w.table, "endpoints", func(_, v []byte) bool {
				rows++
				ports[string(v[4:6])] = true
				return true
			}); err != nil {
				return err
			}
			if len(ports) != 1 || rows != 10 {
				return fmt.Errorf("%d rows of %d generations", rows, len(ports))
			}
			w.model.SetSlice(generation(7))
			res, err := w.sync()
			if err == nil && !res.adopted {
				err = errors.New("the table was not adopted")
			}
			return err
		})
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
}

// other changes the suite's table behind the writer's back.
func other(ops ...nft.Op) error {
	k, err := nft.Open()
	if err != nil {
		return err
	}
	defer k.Close()
	tx := nft.NewTx(model.V4, "berth-suite")
	for _, o := range ops {
		tx.Add(o)
	}
	return k.Apply(tx)
}

// otherEndpoint changes the value of one row, and no key.
func otherEndpoint() error {
	k, err := nft.Open()
	if err != nil {
		return err
	}
	defer k.Close()
	s := model.Endpoints.Shape(model.V4)
	var row []byte
	err = k.Rows(model.V4, "berth-suite", s.Name, func(key, value []byte) bool {
		row = slices.Concat(key, value)
		return false
	})
	if err != nil {
		return err
	}
	key := slices.Clone(row[:s.Key])
	row[s.Key+3]++
	return other(nft.Op{Verb: nft.DeleteRows, Name: s.Name, Shape: s, Rows: key}, nft.Op{Verb: nft.AddRows, Name: s.Name, Shape: s,
		Rows: row})
}

// otherRules changes what the rules of a chain do, and not how many there are.
func otherRules() error {
	k, err := nft.Open()
	if err != nil {
		return err
	}
	defer k.Close()
	rules, err := k.Rules(model.V4, "berth-suite")
	if err != nil {
		return err
	}
	ops := []nft.Op{{Verb: nft.FlushChain, Name: "pick-1"}}
	for range rules["pick-1"] {
		ops = append(ops, nft.Op{Verb: nft.AddRule, Name: "pick-1", Rule: []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}})
	}
	return other(ops...)
}

// TestKernelDrift checks that what others do to the table is seen, and that
// it is put right.
func TestKernelDrift(t *testing.T) {
	ns := netnstest.New(t)
	byHand := func(args ...string) func() error {
		return func() error { return run(append([]string{"nft"}, args...)...) }
	}
	damage := map[string]func() error{
		"rows lost":            byHand("flush", "set", "ip", "berth-suite", "cluster-ips"),
		"rules lost":           byHand("flush", "chain", "ip", "berth-suite", "vips"),
		"the table lost":       byHand("delete", "table", "ip", "berth-suite"),
		"a row too many":       byHand("add", "element", "ip", "berth-suite", "hairpin", "{ 1.2.3.4 . 1.2.3.4 }"),
		"a rule too many":      byHand("add", "rule", "ip", "berth-suite", "output", "accept"),
		"a range too many":     byHand("add", "rule", "ip", "berth-suite", "service-cidrs", "ip", "daddr", "1.2.3.4", "drop"),
		"another endpoint":     otherEndpoint,
		"other rules, as many": otherRules,
	}
	err := netnstest.In(ns, func() error {
		k, err := nft.Open()
		if err != nil {
			return err
		}
		defer k.Close()
		p := planOf(model.V4)
		w := p.writer(k)
		p.fill(w)
		if _, err := w.sync(); err != nil {
			return err
		}
		var o others
		seen := func() bool {
			gen, e := k.Generation()
			err = errors.Join(err, e)
			return o.changed(gen, k.Applied)
		}
		seen()
		w.model.SetSlice(slice("case0", "10.244.0.11"))
		if _, err := w.sync(); err != nil || seen() {
			return fmt.Errorf("our own change counts as that of others (%v)", err)
		}
		for what, do := range damage {
			if err := do(); err != nil {
				return err
			}
			if !seen() {
				return fmt.Errorf("%s: no change of others is seen", what)
			}
			if ok, err := w.image().intact(k); ok || err != nil {
				return fmt.Errorf("%s: the table passes as intact (%v)", what, err)
			}
			w.synced = false
			if _, err := w.sync(); err != nil {
				return err
			}
			if ok, err := w.image().intact(k); !ok || err != nil {
				return fmt.Errorf("%s: not intact after the repair (%v)", what, err)
			}
			seen()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
