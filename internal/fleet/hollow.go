package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/agent/node"
	"github.com/berth-dev/berth/internal/agent/pod"
	"github.com/berth-dev/berth/internal/kube"
)

// hollow is one node.
type hollow struct {
	f               *fleet
	name, zone      string
	ip              string
	number          int
	agent           *node.Hollow
	begun           types.UID // the Node that renewals began for; owned by report
	renewal, report job
	bring           job // makes the pods that the fleet brings with it
	// silent: stopped or cut off, and thus does nothing.
	silent atomic.Bool
	// unwell: it says of itself that it is not ready.
	unwell atomic.Bool
	// ready is what the API says.
	ready atomic.Bool

	mu   sync.Mutex
	pods map[types.UID]*hollowPod
}

// requestTimeout is how long an agent waits for the API to take a write.
const requestTimeout = 10 * time.Second

func (f *fleet) newHollow(i int) *hollow {
	h := &hollow{f: f, number: i, name: fmt.Sprintf("%s-%d", f.cfg.Prefix, i)}
	h.ip = fmt.Sprintf("10.%d.%d.%d", 128+i>>16, i>>8&255, i&255)
	if f.cfg.Zones > 0 {
		h.zone = "zone-" + string(rune('a'+i%f.cfg.Zones))
	}
	h.agent = h.newAgent()
	h.renewal = job{pool: f.leases, step: h.renewals}
	h.report = job{pool: f.rest, step: h.reports}
	h.bring = job{pool: f.rest, step: h.brings}
	return h
}

// newAgent is an agent that has just started.
func (h *hollow) newAgent() *node.Hollow {
	labels := map[string]string{Label: h.f.cfg.Prefix}
	if h.zone != "" {
		labels[v1.LabelTopologyZone] = h.zone
	}
	maps.Copy(labels, h.f.cfg.Labels)
	in := h.f.host
	in.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: h.ip}, {Type: v1.NodeHostName, Address: h.name}}
	return h.f.agents.New(node.Identity{Name: h.name, Labels: labels}, in, h.f.well)
}

// hostOf is what every machine says of itself.
func hostOf(cfg *Config) node.Inputs {
	yes := func(kind string) *runtimeapi.RuntimeCondition {
		return &runtimeapi.RuntimeCondition{Type: kind, Status: true}
	}
	return node.Inputs{
		Host: &node.HostInfo{CPUs: cfg.CPUs, MemoryBytes: cfg.Memory.Value(), MachineID: "hollow", SystemUUID: "hollow", BootID: "hollow",
			Kernel: "hollow", OSImage: "hollow"},
		RootFS: &node.FS{CapacityBytes: 100 << 30, Inodes: 1 << 20},
		Images: []v1.ContainerImage{},
		Runtime: node.RuntimeView{Status: &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{
			Conditions: []*runtimeapi.RuntimeCondition{yes(runtimeapi.RuntimeReady), yes(runtimeapi.NetworkReady)}}},
			Version: &runtimeapi.VersionResponse{RuntimeName: "hollow", RuntimeVersion: "1"}},
	}
}

// renewals renews the lease.
func (h *hollow) renewals(ctx context.Context) time.Time {
	if h.silent.Load() {
		return time.Time{}
	}
	began := time.Now()
	wait, ok := h.agent.RenewLease(ctx)
	if !ok {
		return time.Time{} // until it is registered
	}
	h.f.stats.renewal(time.Since(began))
	return time.Now().Add(wait)
}

// reports keeps the Node object true.
func (h *hollow) reports(ctx context.Context) time.Time {
	if h.silent.Load() {
		return time.Time{}
	}
	board := h.f.well
	if h.unwell.Load() {
		board = h.f.unwell
	}
	h.agent.SetBoard(board)
	next := h.agent.Report(ctx)
	if uid := h.agent.UID(); uid != "" && uid != h.begun {
		h.begun = uid
		h.f.leases.trigger(&h.renewal)
		h.f.rest.trigger(&h.bring)
	}
	return next
}

// brings makes the node's own pods, and tries again what failed.
func (h *hollow) brings(ctx context.Context) time.Time {
	for i := range h.f.cfg.Pods {
		no := false
		_, err := h.f.client.CoreV1().Pods(podNamespace).Create(ctx, &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", h.name, i), Labels: map[string]string{Label: h.f.cfg.Prefix}},
			Spec: v1.PodSpec{NodeName: h.name, AutomountServiceAccountToken: &no,
				Containers: []v1.Container{{Name: "main", Image: "hollow"}}},
		}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) && ctx.Err() == nil {
			h.f.stats.podErrors.Add(1)
			h.f.cfg.Log.Warn("making a pod", "node", h.name, "err", err)
			return time.Now().Add(5 * time.Second)
		}
	}
	return time.Time{}
}

// learn takes a state of the Node object from the watch.
func (h *hollow) learn(n *v1.Node) {
	n.ManagedFields = nil // most of the object, and of no use here
	h.agent.Learn(n)
	ready := false
	for _, c := range n.Status.Conditions {
		ready = ready || c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
	}
	if h.ready.Swap(ready) != ready {
		h.f.stats.readyChanged(ready, h.silent.Load())
	}
	h.f.rest.trigger(&h.report)
}

// gone takes in that the Node object was deleted.
func (h *hollow) gone() {
	if h.ready.Swap(false) {
		h.f.stats.readyChanged(false, h.silent.Load())
	}
	h.agent.Forget("")
	h.f.rest.trigger(&h.report)
}

// silence stops the node: it renews and reports nothing until resume.
func (h *hollow) silence() { h.silent.Store(true) }

// resume ends every fault. On a host that was off every pod begins again.
func (h *hollow) resume() {
	h.unwell.Store(false)
	h.f.rest.trigger(&h.report)
	if h.silent.Swap(false) {
		h.f.leases.trigger(&h.renewal)
		for _, p := range h.podList() {
			h.f.rest.trigger(&p.job)
		}
	}
}

func (h *hollow) podList() []*hollowPod {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]*hollowPod, 0, len(h.pods))
	for _, p := range h.pods {
		out = append(out, p)
	}
	return out
}

// hollowPod is one pod on a hollow node.
type hollowPod struct {
	job job
	h   *hollow
	// mu guards what the watch tells.
	mu     sync.Mutex
	newest *v1.Pod
	gone   bool
	off    bool // its machine was turned off since it last ran

	run *pod.Hollow // owned by the job; nil before it first ran
}

// onPod takes in a pod's new state from the watch.
func (h *hollow) onPod(o *v1.Pod) {
	o.ManagedFields = nil
	h.mu.Lock()
	p := h.pods[o.UID]
	if p == nil {
		p = &hollowPod{h: h}
		p.job = job{pool: h.f.rest, step: p.step}
		if h.pods == nil {
			h.pods = map[types.UID]*hollowPod{}
		}
		h.pods[o.UID] = p
	}
	h.mu.Unlock()
	p.mu.Lock()
	p.newest = o
	p.mu.Unlock()
	h.f.rest.trigger(&p.job)
}

// onPodDelete takes in that a pod was deleted.
func (h *hollow) onPodDelete(uid types.UID) {
	h.mu.Lock()
	p := h.pods[uid]
	h.mu.Unlock()
	if p == nil {
		return
	}
	p.mu.Lock()
	p.gone = true
	p.mu.Unlock()
	h.f.rest.trigger(&p.job)
}

// powerOff ends what runs.
func (h *hollow) powerOff() {
	for _, p := range h.podList() {
		p.mu.Lock()
		p.off = true
		p.mu.Unlock()
	}
}

// step does for a pod what is to be done now.
func (p *hollowPod) step(ctx context.Context) time.Time {
	if p.h.silent.Load() {
		return time.Time{}
	}
	p.mu.Lock()
	newest, gone, off := p.newest, p.gone, p.off
	p.off = false
	p.mu.Unlock()
	if p.run == nil || off {
		p.run = pod.NewHollow(newest, p.h.podIP(), pod.Node{IPs: []string{p.h.ip}}, time.Now())
	}
	p.run.Set(newest)
	if gone {
		p.run.Gone()
	}
	for ctx.Err() == nil {
		write, wake, over, err := p.run.Step(time.Now())
		switch {
		case err != nil:
			p.h.f.cfg.Log.Error("running a pod", "node", p.h.name, "err", err)
			return time.Time{}
		case over:
			p.h.mu.Lock()
			delete(p.h.pods, newest.UID)
			p.h.mu.Unlock()
			return time.Time{}
		case write == nil:
			return wake
		}
		p.write(ctx, write)
	}
	return time.Time{}
}

// write does what a pod wants written.
func (p *hollowPod) write(ctx context.Context, w *pod.Write) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	o := p.run.Pod()
	pods := p.h.f.client.CoreV1().Pods(o.Namespace)
	var got *v1.Pod
	var err error
	if w.Delete {
		now := int64(0)
		err = pods.Delete(ctx, o.Name, metav1.DeleteOptions{GracePeriodSeconds: &now,
			Preconditions: metav1.NewUIDPreconditions(string(o.UID))})
		if kube.Gone(err) {
			err = nil
		}
	} else {
		got, err = pods.Patch(ctx, o.Name, types.StrategicMergePatchType, w.Patch, metav1.PatchOptions{}, "status")
		if err == nil {
			got.ManagedFields = nil
		}
	}
	if err != nil && !errors.Is(err, context.Canceled) && !kube.Gone(err) {
		p.h.f.stats.podErrors.Add(1)
		p.h.f.cfg.Log.Debug("writing a pod", "pod", o.Namespace+"/"+o.Name, "err", err)
	}
	p.run.Wrote(w, got, err, time.Now())
}

// podIP is an address for the node's next pod.
func (h *hollow) podIP() string {
	n := h.f.podIPs.Add(1)
	return fmt.Sprintf("100.%d.%d.%d", 64+n>>16&63, n>>8&255, n&255)
}

// noEvents drops events.
type noEvents struct{}

func (noEvents) Event(runtime.Object, string, string, string)                                      {}
func (noEvents) Eventf(runtime.Object, string, string, string, ...any)                             {}
func (noEvents) AnnotatedEventf(runtime.Object, map[string]string, string, string, string, ...any) {}
