package inventory

import (
	"context"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"
	cloudapi "k8s.io/cloud-provider/api"
	cloudfake "k8s.io/cloud-provider/fake"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/nodes/cloud"
)

// world is a cloud that the contract can change.
type world interface {
	provider() cloudprovider.Interface
	// set makes these the hosts there are, by node name.
	set(t *testing.T, machines map[string]state)
}

// written makes a list as a person would write it.
func written(machines map[string]state) string {
	if len(machines) == 0 {
		return head + "empty: true\n"
	}
	var b strings.Builder
	b.WriteString(head + "machines:\n")
	for _, name := range slices.Sorted(maps.Keys(machines)) {
		fmt.Fprintf(&b, "- {name: %q, providerID: 'rack://%s', state: %s, type: big, zone: z1, region: r1, addresses: [{type: InternalIP,"+
			" address: 10.0.0.9}], labels: {row: a}}\n", name, name, machines[name])
	}
	return b.String()
}

// inFile is the inventory in a file that is replaced, as config maps are.
type inFile struct {
	path string
	p    *Provider
}

func (w *inFile) provider() cloudprovider.Interface { return w.p }

func (w *inFile) set(t *testing.T, machines map[string]state) {
	if err := os.WriteFile(w.path+".new", []byte(written(machines)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(w.path+".new", w.path); err != nil {
		t.Fatal(err)
	}
}

func newInFile(t *testing.T, machines map[string]state) world {
	w := &inFile{path: filepath.Join(t.TempDir(), "machines.yaml")}
	w.set(t, machines)
	w.p = open(t, w.path)
	return w
}

// open opens a provider and keeps it running for the test.
func open(t *testing.T, config string) *Provider {
	p, err := Open(t.Context(), config, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the inventory ended with %v", err)
		}
	})
	return p
}

// remoteList is the inventory behind HTTPS, with a token and ETags.
type remoteList struct {
	mu       sync.Mutex
	text     string
	same     int // answers 304
	p        *Provider
	brokenBy int // status to answer with instead
}

func (w *remoteList) provider() cloudprovider.Interface { return w.p }

func (w *remoteList) set(_ *testing.T, machines map[string]state) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = written(machines)
}

func (w *remoteList) ServeHTTP(rw http.ResponseWriter, req *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	etag := fmt.Sprintf("%q", fmt.Sprintf("%x", sha256.Sum256([]byte(w.text))))
	switch {
	case w.brokenBy != 0:
		http.Error(rw, "broken", w.brokenBy)
	case req.Header.Get("Authorization") != "Bearer s3cret":
		http.Error(rw, "who are you", http.StatusUnauthorized)
	case req.Header.Get("If-None-Match") == etag:
		w.same++
		rw.WriteHeader(http.StatusNotModified)
	default:
		rw.Header().Set("ETag", etag)
		fmt.Fprint(rw, w.text)
	}
}

func newRemoteList(t *testing.T, machines map[string]state) world {
	w := &remoteList{}
	w.set(t, machines)
	server := httptest.NewTLSServer(w)
	t.Cleanup(server.Close)
	dir := t.TempDir()
	files := map[string]string{
		"ca.pem": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})), "token": "s3cret\n",
		"source.yaml": fmt.Sprintf("apiVersion: %s\nkind: %s\nurl: %s\ncaFile: %s/ca.pem\ntokenFile: %s/token\ninterval: 1s\n", Version,
			KindSource, server.URL, dir, dir),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.p = open(t, filepath.Join(dir, "source.yaml"))
	return w
}

// other is a cloud that is not ours: it answers about one host at a time and
// tells no one of changes.
type other struct {
	cloudfake.Cloud
	mu       sync.Mutex
	machines map[string]state
}

func newOther(t *testing.T, machines map[string]state) world {
	o := &other{}
	o.set(t, machines)
	return o
}

func (o *other) provider() cloudprovider.Interface { return o }

func (o *other) set(_ *testing.T, machines map[string]state) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.machines = machines
}

func (o *other) state(n *v1.Node) (state, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s, ok := o.machines[n.Name]
	return s, ok
}

func (o *other) InstancesV2() (cloudprovider.InstancesV2, bool) { return o, true }

func (o *other) InstanceExists(_ context.Context, n *v1.Node) (bool, error) {
	_, ok := o.state(n)
	return ok, nil
}

func (o *other) InstanceShutdown(_ context.Context, n *v1.Node) (bool, error) {
	s, _ := o.state(n)
	return s == Stopped, nil
}

func (o *other) InstanceMetadata(_ context.Context, n *v1.Node) (*cloudprovider.InstanceMetadata, error) {
	if _, ok := o.state(n); !ok {
		return nil, cloudprovider.InstanceNotFound
	}
	return &cloudprovider.InstanceMetadata{ProviderID: "rack://" + n.Name, InstanceType: "big", Zone: "z1", Region: "r1",
			NodeAddresses:    []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "10.0.0.9"}},
			AdditionalLabels: map[string]string{"row": "a"}},
		nil
}

// The contract: what the controllers do with any provider.
func TestContract(t *testing.T) {
	for name, make := range map[string]func(*testing.T, map[string]state) world{"file": newInFile, "https": newRemoteList,
		"another cloud": newOther} {
		t.Run(name, func(t *testing.T) { contract(t, make) })
	}
}

func contract(t *testing.T, make func(*testing.T, map[string]state) world) {
	ready := func(s v1.ConditionStatus) []v1.NodeCondition {
		return []v1.NodeCondition{{Type: v1.NodeReady, Status: s}}
	}
	client := fake.NewClientset(
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "fresh"},
			Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: cloudapi.TaintExternalCloudProvider, Value: "true",
				Effect: v1.TaintEffectNoSchedule}}},
			Status: v1.NodeStatus{Conditions: ready(v1.ConditionTrue),
				Addresses: []v1.NodeAddress{{Type: v1.NodeHostName, Address: "fresh"}}}},
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "off"}, Status: v1.NodeStatus{Conditions: ready(v1.ConditionUnknown)}},
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gone"}, Status: v1.NodeStatus{Conditions: ready(v1.ConditionUnknown)}},
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "unlisted"}, Status: v1.NodeStatus{Conditions: ready(v1.ConditionTrue)}},
	)
	w := make(t, map[string]state{"fresh": Running, "off": Stopped, "gone": Running})
	ask, err := cloud.NewAsker(w.provider(), cloud.Limits{Rate: 1000, Burst: 1000, AtOnce: 10})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	shared := informers.NewSharedInformerFactory(client, 0)
	events := record.NewFakeRecorder(1000)
	env := controller.Env{Client: client, Informers: shared, Log: slog.New(slog.DiscardHandler),
		Recorders: controller.RecorderFunc(func(string) record.EventRecorder { return events })}
	cfg := cloud.Config{Ask: ask, Refresh: time.Minute, Monitor: 50 * time.Millisecond, Workers: 2}
	var wg sync.WaitGroup
	wg.Go(func() { cloud.RunNodes(ctx, env, cfg) })     //nolint:errcheck // ends with ctx
	wg.Go(func() { cloud.RunLifecycle(ctx, env, cfg) }) //nolint:errcheck // ends with ctx
	defer func() {
		cancel()
		wg.Wait()
		shared.Shutdown()
	}()
	nodes := client.CoreV1().Nodes()
	until := func(what, name string, ok func(*v1.Node) bool) {
		t.Helper()
		watch, err := nodes.Watch(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer watch.Stop()
		deadline := time.After(30 * time.Second)
		for {
			n, err := nodes.Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				n, err = nil, nil
			}
			if err != nil {
				t.Fatal(err)
			}
			if ok(n) {
				return
			}
			select {
			case <-watch.ResultChan():
			case <-deadline:
				t.Fatalf("%s: %s: %+v", name, what, n)
			}
		}
	}
	tainted := func(n *v1.Node, key string) bool {
		return slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == key })
	}
	until("initialised", "fresh", func(n *v1.Node) bool {
		return !tainted(n, cloudapi.TaintExternalCloudProvider) && n.Spec.ProviderID == "rack://fresh" &&
			n.Labels[v1.LabelTopologyZone] == "z1" &&
			n.Labels[v1.LabelFailureDomainBetaRegion] == "r1" && n.Labels[v1.LabelInstanceTypeStable] == "big" && n.Labels["row"] == "a" &&
			len(n.Status.Addresses) == 2 && n.Status.Addresses[0].Address == "10.0.0.9" && n.Status.Addresses[1].Type == v1.NodeHostName
	})
	until("tainted as shut down", "off", func(n *v1.Node) bool { return tainted(n, cloudapi.TaintNodeShutdown) })
	until("still there", "gone", func(n *v1.Node) bool { return n != nil })
	w.set(t, map[string]state{"fresh": Running, "off": Running})
	until("deleted", "gone", func(n *v1.Node) bool { return n == nil })
	n, err := nodes.Get(ctx, "off", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.Status.Conditions = ready(v1.ConditionTrue)
	if _, err := nodes.Update(ctx, n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until("freed when ready", "off", func(n *v1.Node) bool { return !tainted(n, cloudapi.TaintNodeShutdown) })
	until("ready and unlisted, so left alone", "unlisted", func(n *v1.Node) bool { return n != nil })
	var said []string
	for len(events.Events) > 0 {
		said = append(said, <-events.Events)
	}
	for _, want := range []string{"Normal Synced Node synced successfully",
		"Normal DeletingNode Deleting node gone because it does not exist in the cloud provider"} {
		if !slices.Contains(said, want) {
			t.Errorf("no event %q in %q", want, said)
		}
	}
}

// A list that is wrong or out of reach leaves the last good one in force, and
// no one who might be new on it is taken for gone.
func TestBadListHoldsTheLastGoodOne(t *testing.T) {
	w := newInFile(t, map[string]state{"a": Running}).(*inFile)
	changed := make(chan struct{}, 10)
	defer w.p.Notify(func() { changed <- struct{}{} })()
	node := func(name string) *v1.Node { return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	w.p.take(nil, errors.New("out of reach"))
	if ok, err := w.p.InstanceExists(t.Context(), node("a")); !ok || err != nil {
		t.Errorf("a: %v, %v", ok, err)
	}
	if ok, err := w.p.InstanceExists(t.Context(), node("b")); ok || err == nil {
		t.Errorf("b, who may be new: %v, %v", ok, err)
	}
	if m, err := w.p.InstanceStates(t.Context(), []*v1.Node{node("a"), node("b")}); len(m) != 1 || err == nil {
		t.Errorf("both: %v, %v", m, err)
	}
	w.set(t, map[string]state{"a": Running, "c": Stopped})
	<-changed
	if ok, err := w.p.InstanceExists(t.Context(), node("b")); ok || err != nil {
		t.Errorf("b, after a good list: %v, %v", ok, err)
	}
	if off, err := w.p.InstanceShutdown(t.Context(), node("c")); !off || err != nil {
		t.Errorf("c: %v, %v", off, err)
	}
}

func TestUnchangedRemoteListIsNotSentAgain(t *testing.T) {
	w := newRemoteList(t, map[string]state{"a": Running}).(*remoteList)
	r, err := newRemote(w.p.from.(*remote).source)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if _, changed, err := r.load(t.Context()); changed != (i == 0) || err != nil {
			t.Fatalf("changed %v, %v", changed, err)
		}
	}
	w.mu.Lock()
	if w.same < 3 {
		t.Errorf("%d answers of 304, want 3", w.same)
	}
	w.brokenBy = http.StatusBadGateway
	w.mu.Unlock()
	if _, _, err := r.load(t.Context()); err == nil || !strings.Contains(err.Error(), "502 Bad Gateway") {
		t.Errorf("of a broken server: %v", err)
	}
}
