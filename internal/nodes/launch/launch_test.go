package launch

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	coordination "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/retry"
	cloudapi "k8s.io/cloud-provider/api"

	"github.com/berth-dev/berth/internal/control/api/apitest"
	"github.com/berth-dev/berth/internal/journal"
)

// stage is an API server and the controllers that run against it.
type stage struct {
	*testing.T
	env        *apitest.Env
	client     kubernetes.Interface
	kubeconfig string
}

func newStage(t *testing.T) *stage {
	env := apitest.StartEnv(t)
	client, err := kubernetes.NewForConfig(env.Config)
	if err != nil {
		t.Fatal(err)
	}
	c := clientcmdapi.NewConfig()
	c.Clusters["x"] = &clientcmdapi.Cluster{Server: env.Config.Host, CertificateAuthority: env.Config.CAFile}
	c.AuthInfos["x"] = &clientcmdapi.AuthInfo{ClientCertificate: env.Config.CertFile, ClientKey: env.Config.KeyFile}
	c.Contexts["x"] = &clientcmdapi.Context{Cluster: "x", AuthInfo: "x"}
	c.CurrentContext = "x"
	s := &stage{T: t, env: env, client: client, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	if err := clientcmd.WriteToFile(*c, s.kubeconfig); err != nil {
		t.Fatal(err)
	}
	return s
}

// run starts the command as its command line would; stop ends it.
func (s *stage) run(args ...string) (address string, stop func() error) {
	o := NewOptions()
	fs := newFlagSet(o)
	args = append([]string{"--kubeconfig=" + s.kubeconfig, "--authentication-kubeconfig=" + s.kubeconfig, "--authorization-kubeconfig=" +
		s.kubeconfig,
		"--client-ca-file=" + s.env.Config.CAFile, "--leader-elect-retry-period=200ms"}, args...)
	if err := fs.Parse(args); err != nil {
		s.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.Fatal(err)
	}
	o.Serving.Listener, o.Serving.BindPort = l, l.Addr().(*net.TCPAddr).Port
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, o, slog.New(slog.DiscardHandler)) }()
	stopped := false
	stop = func() error {
		cancel()
		if stopped {
			return nil
		}
		stopped = true
		return <-done
	}
	s.Cleanup(func() {
		if err := stop(); err != nil && !errors.Is(err, context.Canceled) {
			s.Errorf("controllers ended with %v", err)
		}
	})
	return l.Addr().String(), stop
}

func (s *stage) node(name string, change func(*v1.Node)) {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelOSStable: "linux"}}}
	if change != nil {
		change(n)
	}
	status := n.Status
	n, err := s.client.CoreV1().Nodes().Create(s.Context(), n, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	if len(status.Conditions) == 0 {
		status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady",
			LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
	}
	// Controllers may be at work on it already.
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		n, err := s.client.CoreV1().Nodes().Get(s.Context(), n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n.Status = status
		_, err = s.client.CoreV1().Nodes().UpdateStatus(s.Context(), n, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		s.Fatal(err)
	}
}

// until waits for a state that a watch shows.
func until[T any](s *stage, what string, get func() (T, error), ok func(T) bool) {
	s.Helper()
	deadline := time.Now().Add(30 * time.Second)
	var last T
	var err error
	for time.Now().Before(deadline) {
		if last, err = get(); err == nil && ok(last) {
			return
		}
		time.Sleep(20 * time.Millisecond) // between looks at an API that is another process in real life
	}
	s.Fatalf("%s: not within 30s: %v, %+v", what, err, last)
}

func (s *stage) untilNode(what, name string, ok func(*v1.Node) bool) {
	s.Helper()
	until(s, name+": "+what, func() (*v1.Node, error) {
		return s.client.CoreV1().Nodes().Get(s.Context(), name, metav1.GetOptions{})
	}, ok)
}

func has(n *v1.Node, key string, effect v1.TaintEffect) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == key && t.Effect == effect })
}

// Everything at once, against the embedded API server: health, eviction, pod
// ranges, pod garbage, ttl, cloud, events, metrics.
func TestControllersDoAllTheirJobs(t *testing.T) {
	s := newStage(t)
	inventory := filepath.Join(t.TempDir(), "machines.yaml")
	machines := "apiVersion: berth.dev/v1alpha1\nkind: MachineInventory\nmachines:\n"
	for _, name := range []string{"alive", "silent", "fresh"} {
		machines += fmt.Sprintf("- {name: %s, providerID: 'rack://%s', zone: z1, region: r1, addresses: [{type: InternalIP, address: "+
			"10.9.9.9}]}\n", name, name)
	}
	if err := os.WriteFile(inventory, []byte(machines), 0o600); err != nil {
		t.Fatal(err)
	}
	s.node("alive", nil)
	s.node("silent", nil)
	s.node("gone", func(n *v1.Node) {
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionUnknown, LastTransitionTime: metav1.Now()}}
	})
	s.node("fresh", func(n *v1.Node) {
		n.Spec.Taints = []v1.Taint{{Key: cloudapi.TaintExternalCloudProvider, Value: "true", Effect: v1.TaintEffectNoSchedule}}
	})
	if _, err := s.client.CoreV1().ServiceAccounts("default").Create(t.Context(),
		&v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"silent", "alive"} {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "on-" + name, Namespace: "default"}, Spec: v1.PodSpec{NodeName: name,
			Containers: []v1.Container{{Name: "c", Image: "i"}},
			Tolerations: []v1.Toleration{{Key: v1.TaintNodeUnreachable, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute,
				TolerationSeconds: new(int64)}}}}
		p, err := s.client.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p.Status.Phase = v1.PodRunning
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
		if _, err := s.client.CoreV1().Pods("default").UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.beat("alive", "fresh")
	dir := t.TempDir()
	address, _ := s.run("--node-monitor-grace-period=3s", "--node-eviction-rate=10", "--allocate-node-cidrs", "--cluster-cidr=10.8.0.0/16",
		"--service-cluster-ip-range=10.8.0.0/24",
		"--cloud-provider=inventory", "--cloud-config="+inventory, "--node-monitor-period=100ms", "--data-dir="+dir)

	s.untilNode("has all it should", "alive", func(n *v1.Node) bool {
		return len(n.Spec.PodCIDRs) == 1 && n.Spec.PodCIDR != "10.8.0.0/24" && n.Annotations["node.alpha.kubernetes.io/ttl"] == "0" &&
			n.Labels["beta.kubernetes.io/os"] == "linux"
	})
	s.untilNode("initialised", "fresh", func(n *v1.Node) bool {
		return n.Spec.ProviderID == "rack://fresh" && n.Labels[v1.LabelTopologyZone] == "z1" && !has(n, cloudapi.TaintExternalCloudProvider,
			v1.TaintEffectNoSchedule)
	})
	s.untilNode("Unknown and tainted", "silent", func(n *v1.Node) bool {
		c := n.Status.Conditions[slices.IndexFunc(n.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady })]
		return c.Status == v1.ConditionUnknown && c.Reason == "NodeStatusUnknown" && has(n, v1.TaintNodeUnreachable,
			v1.TaintEffectNoExecute) && has(n, v1.TaintNodeUnreachable, v1.TaintEffectNoSchedule)
	})
	until(s, "the machine of gone does not exist", func() (bool, error) {
		_, err := s.client.CoreV1().Nodes().Get(t.Context(), "gone", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	}, func(gone bool) bool { return gone })
	until(s, "the pod on silent is evicted", func() (*v1.Pod, error) {
		return s.client.CoreV1().Pods("default").Get(t.Context(), "on-silent", metav1.GetOptions{})
	}, func(p *v1.Pod) bool { return p.DeletionTimestamp != nil })
	if err := s.client.CoreV1().Nodes().Delete(t.Context(), "silent", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.events("RegisteredNode", "RemovingNode", "NodeNotReady", "Synced", "DeletingNode", "TaintManagerEviction")
	s.port(address)
	records := why(t, dir, "silent")
	if len(records) == 0 || !slices.ContainsFunc(records, func(r journal.Record) bool { return r.Decision == "marked Unknown" }) {
		t.Errorf("why knows of silent only %+v", records)
	}
	if last := why(t, dir, "alive"); len(last) == 0 || last[len(last)-1].Decision != "is heard and ready" {
		t.Errorf("why says of alive %+v", last)
	}
}

// beat renews leases of nodes every half second until the test ends.
func (s *stage) beat(names ...string) {
	leases := s.client.CoordinationV1().Leases(v1.NamespaceNodeLease)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	for _, name := range names {
		_, err := leases.Create(ctx, &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: v1.NamespaceNodeLease}},
			metav1.CreateOptions{})
		if err != nil {
			s.Fatal(err)
		}
	}
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			for _, name := range names {
				l, err := leases.Get(ctx, name, metav1.GetOptions{})
				if err == nil {
					l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
					_, err = leases.Update(ctx, l, metav1.UpdateOptions{})
				}
				if err != nil && ctx.Err() == nil {
					s.Error(err)
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(500 * time.Millisecond):
			}
		}
	}()
	s.Cleanup(func() { cancel(); <-ended })
}

func (s *stage) events(reasons ...string) {
	s.Helper()
	for _, reason := range reasons {
		until(s, "event "+reason, func() (*v1.EventList, error) {
			return s.client.CoreV1().Events("").List(s.Context(), metav1.ListOptions{FieldSelector: "reason=" + reason})
		}, func(l *v1.EventList) bool { return len(l.Items) > 0 })
	}
}

// port looks at what HTTPS serves, and to whom.
func (s *stage) port(address string) {
	s.Helper()
	get := func(c *http.Client, path string) (int, string) {
		resp, err := c.Get("https://" + address + path)
		if err != nil {
			s.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			s.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	anybody := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true}} //nolint:gosec // its certificate is its own
	if code, _ := get(anybody, "/healthz"); code != http.StatusOK {
		s.Errorf("/healthz for anybody: %d", code)
	}
	if code, _ := get(anybody, "/metrics"); code != http.StatusForbidden {
		s.Errorf("/metrics for anybody: %d", code)
	}
	own := rest.CopyConfig(s.env.Config)
	own.CAFile, own.Insecure = "", true
	transport, err := rest.TransportFor(own)
	if err != nil {
		s.Fatal(err)
	}
	admin := &http.Client{Transport: transport}
	defer admin.CloseIdleConnections()
	code, metrics := get(admin, "/metrics")
	if code != http.StatusOK {
		s.Fatalf("/metrics for an admin: %d %s", code, metrics)
	}
	for _, name := range []string{
		`node_collector_zone_health{zone="r1/z1"} 100`, `node_collector_zone_size{zone="`, `node_collector_unhealthy_nodes_in_zone{`,
		`node_collector_evictions_total{zone=""} `,
		"node_collector_update_node_health_duration_seconds_bucket", "node_collector_update_all_nodes_health_duration_seconds_bucket",
		"taint_eviction_controller_pod_deletions_total 1",
		`node_ipam_controller_cirdset_max_cidrs{clusterCIDR="10.8.0.0/16"} 256`,
		`node_ipam_controller_cidrset_cidrs_allocations_total{clusterCIDR="10.8.0.0/16"} 4`,
		"node_ipam_controller_cidrset_usage_cidrs", "node_ipam_controller_cidrset_allocation_tries_per_request_bucket",
		"node_controller_cloud_provider_taint_removal_delay_seconds_count 1", "node_controller_initial_node_sync_delay_seconds_count 1",
		"leader_election_master_status", "workqueue_depth", "process_resident_memory_bytes", "berth_node_health_holding 0",
	} {
		if !strings.Contains(metrics, name) {
			s.Errorf("/metrics has no %s", name)
		}
	}
	if code, shown := get(admin, "/configz"); code != http.StatusOK || !strings.Contains(shown, `"NodeMonitorGracePeriod":"3s"`) {
		s.Errorf("/configz: %d %s", code, shown)
	}
	for path, want := range map[string]string{"/metrics/slis": "kubernetes_healthcheck", "/flagz": "kube-controller-manager flagz",
		"/statusz": "kube-controller-manager statusz"} {
		if code, body := get(admin, path); code != http.StatusOK || !strings.Contains(body, want) {
			s.Errorf("%s: %d, lacks %q:\n%s", path, code, want, body)
		}
		if code, _ := get(anybody, path); code != http.StatusForbidden {
			s.Errorf("%s for anybody: %d", path, code)
		}
	}
}

// why asks the socket as berth why does.
func why(t *testing.T, dir, node string) (out []journal.Record) {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn,
		error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, "run", "berth.sock"))
	}}}
	resp, err := c.Get("http://berth/journal?kind=Node&name=" + node)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

// Of two, one leads; when it ends the other takes over, as accounts of their
// own if told so.
func TestSecondTakesOver(t *testing.T) {
	s := newStage(t)
	flags := []string{"--controllers=node-lifecycle-controller,ttl", "--use-service-account-credentials"}
	_, stop := s.run(flags...)
	holder := func() (string, error) {
		l, err := s.client.CoordinationV1().Leases("kube-system").Get(t.Context(), "berth-controllers", metav1.GetOptions{})
		if err != nil || l.Spec.HolderIdentity == nil {
			return "", err
		}
		return *l.Spec.HolderIdentity, nil
	}
	until(s, "one leads", holder, func(id string) bool { return id != "" })
	first, err := holder()
	if err != nil {
		t.Fatal(err)
	}
	s.run(flags...)
	s.node("a", nil)
	s.untilNode("annotated by the first", "a", func(n *v1.Node) bool { return n.Annotations["node.alpha.kubernetes.io/ttl"] == "0" })
	if err := stop(); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	until(s, "the other leads", holder, func(id string) bool { return id != "" && id != first })
	s.node("b", nil)
	s.untilNode("annotated and labelled by the second", "b", func(n *v1.Node) bool {
		return n.Annotations["node.alpha.kubernetes.io/ttl"] == "0" && n.Labels["beta.kubernetes.io/os"] == "linux" &&
			len(n.Spec.PodCIDRs) == 0
	})
	if _, err := s.client.CoreV1().ServiceAccounts("kube-system").Get(t.Context(), "ttl-controller", metav1.GetOptions{}); err != nil {
		t.Errorf("the account of the ttl controller: %v", err)
	}
}

// #128304, #126755: the controller's patches lost taints that others wrote at
// the same moment.
func TestForeignTaintsSurvive_128304(t *testing.T) {
	s := newStage(t)
	s.node("n", nil)
	s.run("--node-monitor-grace-period=1s", "--controllers=node-lifecycle-controller", "--leader-elect=false")
	nodes := s.client.CoreV1().Nodes()
	const count = 30
	for i := range count {
		key := fmt.Sprintf("example.com/%d", i)
		until(s, "writing "+key, func() (bool, error) {
			n, err := nodes.Get(t.Context(), "n", metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: key, Effect: v1.TaintEffectNoSchedule})
			_, err = nodes.Update(t.Context(), n, metav1.UpdateOptions{})
			return err == nil, err
		}, func(ok bool) bool { return ok })
		// Alive and dead in turns, so that the controller writes too.
		if i%5 == 0 {
			until(s, "a status", func() (bool, error) {
				n, err := nodes.Get(t.Context(), "n", metav1.GetOptions{})
				if err != nil {
					return false, err
				}
				n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, LastHeartbeatTime: metav1.Now(),
					LastTransitionTime: metav1.Now()}}
				_, err = nodes.UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
				return err == nil, err
			}, func(ok bool) bool { return ok })
		}
	}
	s.untilNode("all foreign taints and ours", "n", func(n *v1.Node) bool {
		foreign := 0
		for _, taint := range n.Spec.Taints {
			if strings.HasPrefix(taint.Key, "example.com/") {
				foreign++
			}
		}
		return foreign == count && has(n, v1.TaintNodeUnreachable, v1.TaintEffectNoSchedule)
	})
}
