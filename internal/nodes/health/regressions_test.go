package health

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordination "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
)

// Each test below is named after the problem that people reported of what they
// run today (kubernetes/kubernetes); docs/nodes.md lists them.

// clusterOf runs the shell in virtual time on a fake API with nodes n0, n1, ...
// of which each has a ready pod and a lease.
type clusterOf struct {
	t      *testing.T
	client *fake.Clientset
	// before and beforePod, if set, are called before each patch of a node and
	// of a pod; they may take their time (the fake's own hooks hold a lock).
	before, beforePod func(name string)
	events            *record.FakeRecorder
	ctx               context.Context
	versions          atomic.Int64 // of nodes
}

func onCluster(t *testing.T, nodes int, during func(*clusterOf)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		c := &clusterOf{t: t, client: fake.NewClientset(), events: record.NewFakeRecorder(10_000), ctx: ctx}
		for i := range nodes {
			c.add(fmt.Sprintf("n%d", i), v1.ConditionTrue)
		}
		during(c)
		cancel()
	})
}

func (c *clusterOf) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *clusterOf) add(name string, ready v1.ConditionStatus, taints ...v1.Taint) {
	c.must(c.client.Tracker().Add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec:   v1.NodeSpec{Taints: taints},
		Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: ready}}}}))
	c.must(c.client.Tracker().Add(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "d"}, Spec: v1.PodSpec{NodeName: name},
		Status: v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}}}))
	c.must(c.client.Tracker().Add(&coordination.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: v1.NamespaceNodeLease},
		Spec: coordination.LeaseSpec{RenewTime: &metav1.MicroTime{Time: time.Now()}}}))
}

// run starts the shell; stop ends it.
func (c *clusterOf) run() (stop func()) {
	ctx, cancel := context.WithCancel(c.ctx)
	shared := informers.NewSharedInformerFactory(c.client, 0)
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, Config{Client: slowClient{c.client, c.before, c.beforePod, &c.versions}, Informers: shared,
			Log: slog.New(slog.DiscardHandler), Events: c.events})
	}()
	synctest.Wait()
	return func() {
		cancel()
		<-done
		shared.Shutdown()
	}
}

// slowClient calls node ahead of each patch of a node and pod ahead of each
// patch of a pod, unless they are nil.
type slowClient struct {
	*fake.Clientset
	node, pod func(string)
	versions  *atomic.Int64
}

type slowCore struct {
	typedcore.CoreV1Interface
	node, pod func(string)
	versions  *atomic.Int64
}

type slowPods struct {
	typedcore.PodInterface
	before func(string)
}

type slowNodes struct {
	typedcore.NodeInterface
	before   func(string)
	versions *atomic.Int64
}

func (s slowClient) CoreV1() typedcore.CoreV1Interface {
	return slowCore{s.Clientset.CoreV1(), s.node, s.pod, s.versions}
}

func (s slowCore) Nodes() typedcore.NodeInterface {
	return slowNodes{s.CoreV1Interface.Nodes(), s.node, s.versions}
}

func (s slowCore) Pods(namespace string) typedcore.PodInterface {
	return slowPods{s.CoreV1Interface.Pods(namespace), s.pod}
}

func (s slowPods) Patch(ctx context.Context, name string, kind types.PatchType, data []byte, opts metav1.PatchOptions,
	sub ...string) (*v1.Pod, error) {
	if s.before != nil {
		s.before(name)
	}
	return s.PodInterface.Patch(ctx, name, kind, data, opts, sub...)
}

func (s slowNodes) Patch(ctx context.Context, name string, kind types.PatchType, data []byte, opts metav1.PatchOptions,
	sub ...string) (*v1.Node, error) {
	if s.before != nil {
		s.before(name)
	}
	// The fake API numbers no versions, but keeps the one that it is sent.
	var body map[string]any
	if err := json.Unmarshal(data, &body); err != nil {
		return nil, err
	}
	if meta, ok := body["metadata"].(map[string]any); ok {
		meta["resourceVersion"] = strconv.FormatInt(s.versions.Add(1), 10)
	}
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return s.NodeInterface.Patch(ctx, name, kind, data, opts, sub...)
}

// live lets time pass in which the named nodes renew their leases.
func (c *clusterOf) live(d time.Duration, names ...string) {
	c.t.Helper()
	leases := c.client.CoordinationV1().Leases(v1.NamespaceNodeLease)
	for end := time.Now().Add(d); time.Now().Before(end); {
		for _, name := range names {
			l, err := leases.Get(c.ctx, name, metav1.GetOptions{})
			c.must(err)
			l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
			_, err = leases.Update(c.ctx, l, metav1.UpdateOptions{})
			c.must(err)
		}
		time.Sleep(min(5*time.Second, time.Until(end))) // virtual
		synctest.Wait()
	}
}

// state is what the API says of a node and its pod.
func (c *clusterOf) state(name string) string {
	c.t.Helper()
	n, err := c.client.CoreV1().Nodes().Get(c.ctx, name, metav1.GetOptions{})
	c.must(err)
	p, err := c.client.CoreV1().Pods("d").Get(c.ctx, name, metav1.GetOptions{})
	c.must(err)
	out := "Ready=" + string(n.Status.Conditions[0].Status) + " pod=" + string(p.Status.Conditions[0].Status)
	for _, t := range n.Spec.Taints {
		out += " " + t.Key[strings.LastIndex(t.Key, "/")+1:] + ":" + string(t.Effect)
	}
	return out
}

func (c *clusterOf) want(name, state string) {
	c.t.Helper()
	if got := c.state(name); got != state {
		c.t.Errorf("%s: %s, want %s", name, got, state)
	}
}

const (
	fine = "Ready=True pod=True"
	dead = "Ready=Unknown pod=False unreachable:NoSchedule unreachable:NoExecute"
)

// #110341, #83954: a pass of 40 minutes, since API calls were made under a lock.
func TestSlowWriteHoldsUpNobody_110341(t *testing.T) {
	onCluster(t, 4, func(c *clusterOf) {
		release := make(chan struct{})
		c.before = func(node string) {
			if node == "n0" {
				<-release
			}
		}
		stop := c.run()
		c.live(55*time.Second, "n2", "n3")
		c.want("n1", "Ready=Unknown pod=False unreachable:NoSchedule")
		c.want("n2", fine)
		close(release)
		c.live(10*time.Second, "n2", "n3")
		if got := c.state("n0"); !strings.HasPrefix(got, "Ready=Unknown pod=False") {
			t.Errorf("n0: %s", got)
		}
		stop()
	})
}

// Thirty pods to a node: marking them all takes minutes when many nodes die at
// once. Conditions and taints that are due come at their time all the same.
func TestTaintsDoNotWaitBehindPods(t *testing.T) {
	const nodes, dying = 40, 2 * silencing
	onCluster(t, nodes, func(c *clusterOf) {
		release := make(chan struct{})
		var begun, done atomic.Int32
		c.beforePod = func(string) {
			begun.Add(1)
			<-release
			done.Add(1)
		}
		stop := c.run()
		var alive []string
		for i := dying; i < nodes; i++ {
			alive = append(alive, fmt.Sprintf("n%d", i))
		}
		c.live(115*time.Second, alive...) // grace and 65 s of tokens: one at the deadline, six since
		unknown, tainted := 0, 0
		for i := range dying {
			got := c.state(fmt.Sprintf("n%d", i))
			if strings.HasPrefix(got, "Ready=Unknown pod=True unreachable:NoSchedule") {
				unknown++
			}
			if strings.HasSuffix(got, "unreachable:NoExecute") {
				tainted++
			}
		}
		if unknown != dying || tainted != 7 || begun.Load() != silencing || done.Load() != 0 {
			t.Errorf("%d nodes marked Unknown and NoSchedule, want %d; %d tainted NoExecute, want 7; "+
				"%d pod patches begun, want %d, and %d done before, want 0",
				unknown, dying, tainted, begun.Load(), silencing, done.Load())
		}
		close(release)
		c.live(time.Second, alive...)
		if done.Load() != dying {
			t.Errorf("%d pods marked, want %d", done.Load(), dying)
		}
		stop()
	})
}

// #114295: the last node was marked a minute late, since nodes were walked one
// after another.
func TestAllAreMarkedAtTheirDeadline_114295(t *testing.T) {
	const count = 5000
	m := big(count)
	marked := map[time.Duration]int{}
	for range 3 { // the API is asked twice while all are quiet, and before they are marked
		at := m.Next()
		for range 2 {
			for _, d := range m.Advance(at) {
				switch d.Kind {
				case MarkUnknown:
					marked[at.Sub(t0)]++
				case Confirm:
					m.Observe(at, Event{Kind: Confirmed})
				}
			}
		}
	}
	if marked[Defaults().Grace] != count {
		t.Errorf("%v marked, want all %d at the deadline", marked, count)
	}
}

// #77733, #88959: many nodes going at once overloaded the API server, with a
// list of pods for each.
func TestManyDeathsAskLittleOfTheAPI_77733(t *testing.T) {
	onCluster(t, 60, func(c *clusterOf) {
		var now, top, lists atomic.Int32
		c.client.PrependReactor("*", "*", func(a k8stesting.Action) (bool, runtime.Object, error) {
			if a.GetVerb() == "list" && a.GetResource().Resource == "pods" {
				lists.Add(1)
			}
			return false, nil, nil
		})
		write := func(string) {
			if n := now.Add(1); n > top.Load() {
				top.Store(n)
			}
			time.Sleep(10 * time.Millisecond) // virtual: an API that takes its time
			now.Add(-1)
		}
		c.before, c.beforePod = write, write
		stop := c.run()
		c.live(80*time.Second, "n0")
		if got := c.state("n59"); !strings.HasPrefix(got, "Ready=Unknown pod=False") {
			t.Errorf("n59: %s", got)
		}
		if top.Load() > marking+following+silencing || lists.Load() > 1 {
			t.Errorf("%d writes at a time, want at most %d; %d lists of pods, want 1", top.Load(), marking+following+silencing,
				lists.Load())
		}
		stop()
	})
}

// #85221, #26511: a lease watch that died made 580 nodes not ready. Here the
// watch is silent and the leases are renewed.
func TestStaleLeaseWatchIsFoundAndReplaced_85221(t *testing.T) {
	onCluster(t, 10, func(c *clusterOf) {
		var watches atomic.Int32
		c.client.PrependWatchReactor("leases", func(k8stesting.Action) (bool, watch.Interface, error) {
			if watches.Add(1) == 1 {
				return true, watch.NewFake(), nil // says nothing, ever
			}
			return false, nil, nil
		})
		stop := c.run()
		var all []string
		for i := range 10 {
			all = append(all, fmt.Sprintf("n%d", i))
		}
		c.live(5*time.Minute, all...)
		for _, name := range all {
			c.want(name, fine)
		}
		if watches.Load() != 2 {
			t.Errorf("%d lease watches, want the stale one and a new one", watches.Load())
		}
		said := false
		for len(c.events.Events) > 0 {
			said = said || strings.HasPrefix(<-c.events.Events, "Warning NodeLeaseWatchStale Node health found the lease watch stale")
		}
		if !said {
			t.Error("no event says that the watch was stale")
		}
		stop()
	})
}

// #120815, #120816: the NoExecute taint came five seconds after the condition.
func TestNoExecuteComesWithTheCondition_120815(t *testing.T) {
	onCluster(t, 5, func(c *clusterOf) {
		stop := c.run()
		c.live(50*time.Second, "n1", "n2", "n3", "n4")
		c.want("n0", dead)
		stop()
	})
}

// #125618: pods of a node that posts Ready=False itself stayed ready.
func TestPodsOfANodeThatSaysNotReady_125618(t *testing.T) {
	onCluster(t, 3, func(c *clusterOf) {
		stop := c.run()
		c.live(20*time.Second, "n0", "n1", "n2")
		n, err := c.client.CoreV1().Nodes().Get(c.ctx, "n0", metav1.GetOptions{})
		c.must(err)
		n.Status.Conditions[0].Status = v1.ConditionFalse
		_, err = c.client.CoreV1().Nodes().Update(c.ctx, n, metav1.UpdateOptions{})
		c.must(err)
		c.live(time.Second, "n0", "n1", "n2")
		c.want("n0", "Ready=False pod=False not-ready:NoSchedule not-ready:NoExecute")
		stop()
	})
}

// An agent that says Ready=False of its node and that its pods are ready, as
// their probes tell it, is not written against.
func TestAgentThatDisagreesIsLeftAlone(t *testing.T) {
	onCluster(t, 3, func(c *clusterOf) {
		var marks atomic.Int32
		c.beforePod = func(string) { marks.Add(1) }
		stop := c.run()
		n, err := c.client.CoreV1().Nodes().Get(c.ctx, "n0", metav1.GetOptions{})
		c.must(err)
		n.Status.Conditions[0].Status = v1.ConditionFalse
		_, err = c.client.CoreV1().Nodes().Update(c.ctx, n, metav1.UpdateOptions{})
		c.must(err)
		for range 5 {
			c.live(time.Second, "n0", "n1", "n2")
			p, err := c.client.CoreV1().Pods("d").Get(c.ctx, "n0", metav1.GetOptions{})
			c.must(err)
			p.Status.Conditions[0].Status = v1.ConditionTrue
			_, err = c.client.CoreV1().Pods("d").Update(c.ctx, p, metav1.UpdateOptions{})
			c.must(err)
		}
		c.live(30*time.Second, "n0", "n1", "n2")
		if got := c.state("n0"); !strings.HasPrefix(got, "Ready=False pod=True") || marks.Load() != 1 {
			t.Errorf("n0: %s after %d patches of its pod, want the agent's word after one", got, marks.Load())
		}
		stop()
	})
}

// #135205, #48681, #50067, #128643: a controller that died between marking a
// node and its pods left them ready for ever; and one that started took the
// taints off, which began all tolerations again.
func TestRestartFinishesWhatWasBegun_135205(t *testing.T) {
	onCluster(t, 3, func(c *clusterOf) {
		added := metav1.NewTime(time.Now().Add(-4 * time.Minute))
		c.add("half", v1.ConditionUnknown, v1.Taint{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoSchedule},
			v1.Taint{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoExecute, TimeAdded: &added})
		var mu sync.Mutex
		var writes []string
		c.client.PrependReactor("patch", "nodes", func(a k8stesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			writes = append(writes, string(a.(k8stesting.PatchAction).GetPatch()))
			return false, nil, nil
		})
		for range 3 {
			stop := c.run()
			c.live(5*time.Second, "n0", "n1", "n2")
			c.want("half", dead)
			stop()
		}
		n, err := c.client.CoreV1().Nodes().Get(c.ctx, "half", metav1.GetOptions{})
		c.must(err)
		if got := n.Spec.Taints[1].TimeAdded; got == nil || !got.Equal(&added) || len(writes) > 0 {
			t.Errorf("the taint is of %v, not %s; writes: %q", got, added, writes)
		}
	})
}
