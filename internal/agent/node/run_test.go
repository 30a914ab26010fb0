package node

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	goruntime "runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// fakeRuntime answers as told; while hanging is set it ignores its context,
// as a runtime stuck in the kernel does.
type fakeRuntime struct {
	mu      sync.Mutex
	network bool
	err     error
	hanging chan struct{}
}

func (f *fakeRuntime) set(network bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.network, f.err = network, err
}

func (f *fakeRuntime) hang() (release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ch := make(chan struct{})
	f.hanging = ch
	return func() {
		f.mu.Lock()
		f.hanging = nil
		f.mu.Unlock()
		close(ch)
	}
}

func (f *fakeRuntime) answer() error {
	f.mu.Lock()
	hanging, err := f.hanging, f.err
	f.mu.Unlock()
	if hanging != nil {
		<-hanging
	}
	return err
}

func (f *fakeRuntime) Version(context.Context, string) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "containerd", RuntimeVersion: "v2.1"}, f.answer()
}

func (f *fakeRuntime) Status(context.Context, bool) (*runtimeapi.StatusResponse, error) {
	if err := f.answer(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true},
		{Type: runtimeapi.NetworkReady, Status: f.network, Reason: "NetworkPluginNotReady", Message: "cni not initialized"},
	}}}, nil
}

func (f *fakeRuntime) UpdateRuntimeConfig(context.Context, *runtimeapi.RuntimeConfig) error {
	return f.answer()
}

func (f *fakeRuntime) ListImages(context.Context, *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	return []*runtimeapi.Image{{Id: "a", RepoTags: []string{"a:1"}, Size: 5}}, f.answer()
}

// newClient is a fake API server that gives Nodes a UID, as a real one does.
func newClient() *fake.Clientset {
	client := fake.NewClientset()
	client.PrependReactor("create", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		node := action.(clienttesting.CreateAction).GetObject().(*v1.Node)
		node.UID = uuid.NewUUID()
		return false, nil, nil
	})
	return client
}

func testConfig(t *testing.T, cri *fakeRuntime, client kubernetes.Interface) Config {
	return Config{
		Log: slog.New(slog.DiscardHandler), Client: client, Runtime: cri, Images: cri,
		Board: NewStatusInputs(), Events: record.NewFakeRecorder(1000), Register: true, RootDir: t.TempDir(),
		Settings: Settings{Identity: Identity{Name: "n1", AttachDetach: true}, Limits: Limits{MaxPods: 110}, Port: 10250,
			Version: "v1.37.2", MaxImages: 50},
		Host: func(context.Context, string, bool) (Host, error) {
			ip := netip.MustParseAddr("192.0.2.7")
			return Host{Interfaces: []netip.Addr{ip}, Default4: ip}, nil
		},
	}
}

// start runs the role inside a synctest bubble until the returned function is
// called.
func start(t *testing.T, cfg Config) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, cfg) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

func getNode(t *testing.T, client *fake.Clientset) *v1.Node {
	t.Helper()
	node, err := client.CoreV1().Nodes().Get(context.Background(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatalf("getting the node: %v", err)
	}
	return node
}

func readyOf(node *v1.Node) v1.NodeCondition {
	if c := findCondition(node.Status.Conditions, v1.NodeReady); c != nil {
		return *c
	}
	return v1.NodeCondition{}
}

func renewed(t *testing.T, client *fake.Clientset) time.Time {
	t.Helper()
	lease, err := client.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(context.Background(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatalf("getting the lease: %v", err)
	}
	return lease.Spec.RenewTime.Time
}

func TestNodeBecomesReadyAsSoonAsItsNetworkIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cri, client := &fakeRuntime{}, newClient()
		cfg := testConfig(t, cri, client)
		defer start(t, cfg)()
		time.Sleep(time.Second)
		ready := readyOf(getNode(t, client))
		want := "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:cni not initialized"
		if ready.Status != v1.ConditionFalse || ready.Message != want {
			t.Fatalf("before the network is up Ready is %+v", ready)
		}
		cri.set(true, nil)
		cfg.Board.ProbeRuntime()
		synctest.Wait() // no time passes: the network's readiness is an event
		node := getNode(t, client)
		if ready := readyOf(node); ready.Status != v1.ConditionTrue {
			t.Fatalf("after the network is up Ready is %+v", ready)
		}
		if got := node.Status.Addresses; len(got) != 2 || got[0].Address != "192.0.2.7" || got[1].Address != "n1" {
			t.Errorf("addresses are %v", got)
		}
		if len(node.Status.Images) != 1 {
			t.Errorf("images are %v", node.Status.Images)
		}
	})
}

func TestLeaseIsRenewedWhileTheRuntimeHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cri, client := &fakeRuntime{network: true}, newClient()
		defer start(t, testConfig(t, cri, client))()
		time.Sleep(time.Minute)
		release := cri.hang()
		defer release()
		hung := time.Now()
		longest := time.Duration(0)
		for last := renewed(t, client); time.Since(hung) < 10*time.Minute; {
			time.Sleep(100 * time.Millisecond)
			if now := renewed(t, client); !now.Equal(last) {
				longest = max(longest, now.Sub(last))
				last = now
			}
		}
		if limit := 10400*time.Millisecond + time.Millisecond; longest == 0 || longest > limit {
			t.Errorf("the longest gap between renewals was %v, want at most %v", longest, limit)
		}
		ready := readyOf(getNode(t, client))
		if ready.Status != v1.ConditionFalse || ready.Reason != "KubeletNotReady" ||
			ready.Message[:45] != "container runtime is down: no answer to Status"[:45] {
			t.Errorf("Ready is %+v", ready)
		}
	})
}

func TestNodeIsRegisteredAgainAfterDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cri, client := &fakeRuntime{network: true}, newClient()
		defer start(t, testConfig(t, cri, client))()
		time.Sleep(time.Minute)
		if err := client.CoreV1().Nodes().Delete(context.Background(), "n1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if ready := readyOf(getNode(t, client)); ready.Status != v1.ConditionTrue {
			t.Errorf("Ready is %+v", ready)
		}
	})
}

// What the host is, is corrected while the agent runs; other labels belong to
// no matter who changes them.
func TestHostLabelsAreCorrectedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cri, client := &fakeRuntime{network: true}, newClient()
		defer start(t, testConfig(t, cri, client))()
		time.Sleep(time.Minute)
		patch := `{"metadata":{"labels":{"kubernetes.io/os":"dummy","kubernetes.io/arch":"dummy","kubernetes.io/hostname":"changed"}}}`
		if _, err := client.CoreV1().Nodes().Patch(context.Background(), "n1", types.MergePatchType, []byte(patch),
			metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		labels := getNode(t, client).Labels
		if labels[v1.LabelOSStable] != goruntime.GOOS || labels[v1.LabelArchStable] != goruntime.GOARCH ||
			labels[v1.LabelHostname] != "changed" {
			t.Errorf("labels are %v", labels)
		}
	})
}

func TestUnchangedStatusIsPostedEveryFewMinutesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cri, client := &fakeRuntime{network: true}, newClient()
		defer start(t, testConfig(t, cri, client))()
		time.Sleep(10 * time.Minute)
		client.ClearActions()
		time.Sleep(time.Hour)
		patches := 0
		for _, action := range client.Actions() {
			if action.Matches("patch", "nodes") {
				patches++
			}
		}
		if patches < 11 || patches > 13 {
			t.Errorf("an idle hour made %d status posts, want one every five minutes", patches)
		}
	})
}

func TestRestartDoesNotFlipReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cri, client := &fakeRuntime{network: true}, newClient()
		stop := start(t, testConfig(t, cri, client))
		time.Sleep(time.Minute)
		stop()
		before := readyOf(getNode(t, client))
		cri.set(true, errors.New("connection refused"))
		defer start(t, testConfig(t, cri, client))()
		time.Sleep(5 * time.Second)
		cri.set(true, nil)
		time.Sleep(20 * time.Second)
		after := readyOf(getNode(t, client))
		if after.Status != v1.ConditionTrue || !after.LastTransitionTime.Equal(&before.LastTransitionTime) {
			t.Errorf("Ready went from %+v to %+v", before, after)
		}
	})
}
