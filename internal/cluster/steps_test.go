package cluster

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	podnetwork "github.com/berth-dev/berth/internal/network"
	"github.com/berth-dev/berth/internal/testkit/netnstest"
)

// names are the methods that a role's steps run, by lane.
func names(u *up) map[lane]string {
	out := map[lane][]string{}
	for _, s := range u.steps() {
		if !s.here {
			continue
		}
		full := runtime.FuncForPC(reflect.ValueOf(s.run).Pointer()).Name()
		out[s.lane] = append(out[s.lane], strings.TrimSuffix(full[strings.LastIndexByte(full, '.')+1:], "-fm"))
	}
	joined := map[lane]string{}
	for l, list := range out {
		joined[l] = strings.Join(list, " ")
	}
	return joined
}

// TestStepsOfEachRole is the order of a start. A certificate comes before what
// serves with it, rights before who needs them, the metrics before the
// controllers that register there, and the informers start when all asked.
func TestStepsOfEachRole(t *testing.T) {
	for role, want := range map[Role]map[lane]string{
		RoleWhole: {
			first:       "ensureCertificates openJournal",
			runtimeLane: "shareMounts startRuntime loadImages",
			controlLane: "configureServer startStore startAPI grantIdentities shareInformers serveMetrics startControllers serveUI " +
				"startDNS " +
				"startClusterInfo startInformers",
			last: "serveStatus filterBridge startNetwork startPorts startPolicy startVolumes " +
				"configureAgent startProxy startAnnouncer startAgent",
		},
		RoleServer: {
			first: "ensureCertificates openJournal",
			controlLane: "configureServer startStore startAPI grantIdentities shareInformers serveMetrics startControllers serveUI " +
				"startDNS " +
				"startClusterInfo startInformers",
			last: "serveStatus",
		},
		RoleNode: {
			first:       "openJournal",
			runtimeLane: "shareMounts startRuntime loadImages",
			controlLane: "connect shareInformers serveMetrics startDNS startInformers",
			last: "serveStatus filterBridge startNetwork startPorts startPolicy startVolumes " +
				"configureAgent startProxy startAnnouncer startAgent",
		},
	} {
		u := &up{Config: &Config{Settings: Settings{Role: role}}}
		if got := names(u); !reflect.DeepEqual(got, want) {
			t.Errorf("berth %s takes the steps\n%v, want\n%v", role.Command(), got, want)
		}
	}
}

// TestTakeSteps: the lanes go side by side between the first and the last steps,
// and a failure ends the start: nothing later runs, the other lane is canceled.
func TestTakeSteps(t *testing.T) {
	var mu sync.Mutex
	var took []string
	said := func(name string, err error) func(context.Context) error {
		return func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			took = append(took, name)
			return err
		}
	}
	meet := make(chan struct{})
	steps := []step{
		{last, true, said("last", nil)},
		{first, true, said("first", nil)},
		{first, false, said("of another role", nil)},
		// Each lane waits for the other: one after the other they never end.
		{runtimeLane, true, func(context.Context) error { meet <- struct{}{}; return nil }},
		{controlLane, true, func(context.Context) error { <-meet; return nil }},
	}
	if err := take(t.Context(), steps); err != nil || !slices.Equal(took, []string{"first", "last"}) {
		t.Errorf("took %v, %v", took, err)
	}

	broken := errors.New("broken")
	for _, c := range []struct {
		fails lane
		want  []string
	}{
		{first, nil},
		{runtimeLane, []string{"first"}},
		{controlLane, []string{"first"}},
		{last, []string{"first", "lane"}},
	} {
		took = nil
		steps := []step{{first, true, said("first", nil)}, {last, true, said("last", nil)}}
		if c.fails == first || c.fails == last {
			steps = append(steps, step{runtimeLane, true, said("lane", nil)})
		} else {
			other := runtimeLane + controlLane - c.fails
			steps = append(steps, step{other, true, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }},
				step{other, true, said("after the canceled step", nil)})
		}
		steps = slices.Insert(steps, 0, step{c.fails, true, func(context.Context) error { return broken }})
		if err := take(t.Context(), steps); !errors.Is(err, broken) || !slices.Equal(took, c.want) {
			t.Errorf("lane %d fails: took %v, %v; want %v", c.fails, took, err, c.want)
		}
	}
}

// freePorts are ports of a cluster that no one listens on.
func freePorts(t *testing.T) Ports {
	t.Helper()
	var p Ports
	var open []net.Listener
	for _, to := range []*int{&p.API, &p.Agent, &p.AgentHealthz, &p.ProxyHealthz, &p.ProxyMetrics, &p.Metrics, &p.DNS, &p.WireGuard} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, l)
		*to = l.Addr().(*net.TCPAddr).Port
	}
	for _, l := range open {
		l.Close()
	}
	return p
}

// failingServer is a control plane whose store cannot start: the etcd that it
// shall use needs a CA that is not there.
func failingServer(t *testing.T, dir string) *Config {
	t.Helper()
	return &Config{
		Settings: Settings{Role: RoleServer, NodeName: "n", ClusterCIDR: "10.1.0.0/16", ServiceCIDR: "10.2.0.0/16",
			ClusterDomain: "cluster.local", Network: podnetwork.None, Ports: freePorts(t)},
		DataDir: dir, NodeIP: "127.0.0.1",
		externalEtcd: externalEtcd{EtcdServers: []string{"https://127.0.0.1:1"}, EtcdCAFile: filepath.Join(dir, "none.crt")},
	}
}

// entries are the names in a directory.
func entries(t *testing.T, dir string) string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range list {
		out = append(out, e.Name())
	}
	return strings.Join(out, " ")
}

// TestFailedStartIsUndone: the first start that fails leaves its logs alone, a
// later one all that was there; either gives the data directory back.
func TestFailedStartIsUndone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root: a purge looks for the cluster's bridge and tables, which needs root")
	}
	ns := netnstest.New(t) // what the purge removes from the kernel, it removes here
	start := func(cfg *Config) (events []Event) {
		t.Helper()
		emit := func(e Event) { events = append(events, e) }
		err := netnstest.In(ns, func() error { return Up(t.Context(), cfg, emit, make(chan struct{})) })
		if err == nil || !strings.Contains(err.Error(), "none.crt") {
			t.Fatalf("the start must name what is missing: %v", err)
		}
		if pid := Running(cfg.DataDir); pid != 0 {
			t.Errorf("process %d still holds the directory", pid)
		}
		return events
	}
	if err := netnstest.In(ns, loopbackUp); err != nil {
		t.Fatal(err)
	}
	fresh := failingServer(t, t.TempDir())
	var stages []string
	for _, e := range start(fresh) {
		stages = append(stages, e.Stage+" "+e.State)
	}
	want := []string{"checks start", "checks done", "certificates start", "certificates done", "store start", "store fail"}
	if !slices.Equal(stages, want) {
		t.Errorf("progress %q, want %q", stages, want)
	}
	if left := entries(t, fresh.DataDir); left != "logs" {
		t.Errorf("a failed first start leaves %q, want its logs alone", left)
	}

	older := failingServer(t, t.TempDir())
	if err := older.save(); err != nil {
		t.Fatal(err)
	}
	start(older)
	if left := entries(t, older.DataDir); !strings.Contains(left, "cluster.json") || !strings.Contains(left, "pki") {
		t.Errorf("a failed later start leaves %q: it must keep the cluster's own files", left)
	}

	foreign := failingServer(t, t.TempDir())
	if err := os.WriteFile(foreign.Path("thesis.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	start(foreign)
	if left := entries(t, foreign.DataDir); !strings.Contains(left, "thesis.txt") {
		t.Errorf("a failed first start in a directory with other files leaves %q", left)
	}
}

// TestHeldDirectoryIsRefused: a start on the directory of a running cluster
// touches nothing and says who holds it.
func TestHeldDirectoryIsRefused(t *testing.T) {
	cfg := failingServer(t, t.TempDir())
	release, err := lock(cfg.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	if Running(cfg.DataDir) != os.Getpid() {
		t.Errorf("process %d holds it", Running(cfg.DataDir))
	}
	var running *ErrRunning
	err = Up(t.Context(), cfg, func(Event) {}, make(chan struct{}))
	if !errors.As(err, &running) || running.PID != os.Getpid() || !strings.Contains(err.Error(), "berth down") {
		t.Errorf("a second start: %v", err)
	}
	if _, err := lock(cfg.DataDir); !errors.As(err, &running) {
		t.Errorf("a second lock: %v", err)
	}
	if left := entries(t, cfg.DataDir); left != "lock" {
		t.Errorf("the refused start left %q", left)
	}
	release()
	if pid := Running(cfg.DataDir); pid != 0 {
		t.Errorf("released, but process %d holds it", pid)
	}
}

// loopbackUp lets a new network namespace reach itself.
func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}
