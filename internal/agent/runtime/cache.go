package runtime

import (
	"cmp"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// tombstones kept for removed objects, so that an event made before the
// removal and delivered after it does not bring them back.
const maxTombstones = 1024

// cache is the picture of what runs. All methods are safe for concurrent use
// and cost what changed, not what is stored.
type cache struct {
	mu         sync.RWMutex
	pods       map[types.UID]*Pod
	owner      map[string]types.UID // container or sandbox ID -> pod
	born       map[string]uint64    // ID -> generation it entered in
	generation uint64
	dead       map[string]struct{}
	deadOrder  []string
	notify     func(types.UID)
	waiters    chan struct{} // closed at the next change; nil while no one waits
}

// newCache makes an empty cache. notify is called (outside all locks, from
// whatever goroutine brought the news) once per change with the pod's UID; it
// must not block.
func newCache(notify func(types.UID)) *cache {
	return &cache{
		pods: map[types.UID]*Pod{}, owner: map[string]types.UID{}, born: map[string]uint64{},
		dead: map[string]struct{}{}, notify: notify,
	}
}

// Pod returns the snapshot of one pod, or nil when the runtime holds nothing.
func (c *cache) Pod(uid types.UID) *Pod {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.pods[uid]
}

// Pods returns the UIDs of all pods that the runtime holds something of.
func (c *cache) Pods() []types.UID {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := make([]types.UID, 0, len(c.pods))
	for uid := range c.pods {
		out = append(out, uid)
	}
	slices.Sort(out)
	return out
}

// tell passes on that a pod changed.
func (c *cache) notifyPod(uid types.UID) {
	c.mu.Lock()
	if c.waiters != nil {
		close(c.waiters)
		c.waiters = nil
	}
	c.mu.Unlock()
	c.notify(uid)
}

// Changed returns a channel that is closed at the next change of anything.
func (c *cache) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiters == nil {
		c.waiters = make(chan struct{})
	}
	return c.waiters
}

// Running returns every running container, in no order.
func (c *cache) Running() []*Container {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var out []*Container
	for _, p := range c.pods {
		for _, n := range p.Containers {
			if n.State == Running {
				out = append(out, n)
			}
		}
	}
	return out
}

// Owner tells which pod a container or sandbox ID belongs to.
func (c *cache) Owner(id string) (types.UID, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	uid, ok := c.owner[id]
	return uid, ok
}

// SetSandbox takes in a sandbox status. A ready status never replaces a
// not-ready one of the same sandbox: that would be an old event.
func (c *cache) SetSandbox(s *runtimeapi.PodSandboxStatus) (changed bool) {
	uid, namespace, name, ok := podOf(s.GetLabels())
	if !ok || s.GetId() == "" {
		return false
	}
	b := newSandbox(s)
	c.mu.Lock()
	changed = c.putSandbox(uid, namespace, name, b)
	c.mu.Unlock()
	if changed {
		c.notifyPod(uid)
	}
	return changed
}

func (c *cache) putSandbox(uid types.UID, namespace, name string, b *Sandbox) bool {
	if _, gone := c.dead[b.ID]; gone {
		return false
	}
	old := c.pods[uid]
	next := &Pod{UID: uid, Namespace: namespace, Name: name}
	if old != nil {
		next.Containers = old.Containers
		for _, have := range old.Sandboxes {
			if have.ID != b.ID {
				next.Sandboxes = append(next.Sandboxes, have)
				continue
			}
			if !have.Ready && b.Ready || sameSandbox(have, b) {
				return false
			}
			if len(b.IPs) == 0 {
				b.IPs = have.IPs // a stopped sandbox no longer reports its address
			}
		}
	}
	next.Sandboxes = append(next.Sandboxes, b)
	slices.SortFunc(next.Sandboxes, func(x, y *Sandbox) int {
		return cmp.Or(cmp.Compare(y.Attempt, x.Attempt), y.CreatedAt.Compare(x.CreatedAt), cmp.Compare(x.ID, y.ID))
	})
	c.enter(b.ID, uid)
	c.pods[uid] = next
	return true
}

func sameSandbox(a, b *Sandbox) bool {
	return a.Ready == b.Ready && (slices.Equal(a.IPs, b.IPs) || len(b.IPs) == 0)
}

// SetContainer takes in a container status. Older news about a container than
// what is known is dropped.
func (c *cache) SetContainer(sandboxID string, s *runtimeapi.ContainerStatus) (changed bool) {
	uid, namespace, name, ok := podOf(s.GetLabels())
	if !ok || s.GetId() == "" {
		return false // nothing could be asked of it
	}
	n := newContainer(s, sandboxID)
	c.mu.Lock()
	changed = c.putContainer(uid, namespace, name, n)
	c.mu.Unlock()
	if changed {
		c.notifyPod(uid)
	}
	return changed
}

func (c *cache) putContainer(uid types.UID, namespace, name string, n *Container) bool {
	if _, gone := c.dead[n.ID]; gone {
		return false
	}
	old := c.pods[uid]
	next := &Pod{UID: uid, Namespace: namespace, Name: name}
	if old != nil {
		next.Sandboxes = old.Sandboxes
		for _, have := range old.Containers {
			if have.ID != n.ID {
				next.Containers = append(next.Containers, have)
				continue
			}
			if n.State < have.State || sameContainer(have, n) {
				return false
			}
			if n.SandboxID == "" {
				n.SandboxID = have.SandboxID
			}
		}
	}
	next.Containers = append(next.Containers, n)
	slices.SortFunc(next.Containers, func(x, y *Container) int {
		return cmp.Or(cmp.Compare(y.Attempt, x.Attempt), y.CreatedAt.Compare(x.CreatedAt), cmp.Compare(x.ID, y.ID))
	})
	c.enter(n.ID, uid)
	c.pods[uid] = next
	return true
}

// sameContainer compares what can change during a container's life.
func sameContainer(a, b *Container) bool {
	return a.State == b.State && a.ExitCode == b.ExitCode && a.Reason == b.Reason &&
		a.FinishedAt.Equal(b.FinishedAt) && a.StartedAt.Equal(b.StartedAt) &&
		a.Resources.String() == b.Resources.String()
}

func (c *cache) enter(id string, uid types.UID) {
	if _, known := c.owner[id]; !known {
		c.born[id] = c.generation
	}
	c.owner[id] = uid
}

// Remove forgets a container or sandbox that the runtime removed.
func (c *cache) Remove(id string) (changed bool) {
	c.mu.Lock()
	uid, changed := c.remove(id)
	c.mu.Unlock()
	if changed {
		c.notifyPod(uid)
	}
	return changed
}

func (c *cache) remove(id string) (types.UID, bool) {
	c.bury(id)
	uid, known := c.owner[id]
	if !known {
		return "", false
	}
	delete(c.owner, id)
	delete(c.born, id)
	old := c.pods[uid]
	next := &Pod{UID: uid, Namespace: old.Namespace, Name: old.Name}
	for _, b := range old.Sandboxes {
		if b.ID != id {
			next.Sandboxes = append(next.Sandboxes, b)
		}
	}
	for _, n := range old.Containers {
		if n.ID != id {
			next.Containers = append(next.Containers, n)
		}
	}
	if next.Empty() {
		delete(c.pods, uid)
	} else {
		c.pods[uid] = next
	}
	return uid, true
}

func (c *cache) bury(id string) {
	if _, ok := c.dead[id]; ok {
		return
	}
	c.dead[id] = struct{}{}
	c.deadOrder = append(c.deadOrder, id)
	if len(c.deadOrder) > maxTombstones {
		delete(c.dead, c.deadOrder[0])
		c.deadOrder = slices.Delete(c.deadOrder, 0, 1)
	}
}

// Event takes in one event of the runtime's stream, which carries the whole
// sandbox: nothing needs to be asked.
func (c *cache) Event(e *runtimeapi.ContainerEventResponse) {
	if b := e.GetPodSandboxStatus(); b != nil {
		c.SetSandbox(b)
		for _, s := range e.GetContainersStatuses() {
			c.SetContainer(b.GetId(), s)
		}
	}
	if e.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT {
		c.Remove(e.GetContainerId())
	}
}

// mark opens a relist: what enters the cache from now on is newer than the
// list that is about to be read.
func (c *cache) mark() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation++
	return c.generation
}

// sweep removes what a relist did not find, except what entered since mark.
func (c *cache) sweep(found map[string]struct{}, mark uint64) (removed int) {
	var touched []types.UID
	c.mu.Lock()
	for id := range c.owner {
		if _, ok := found[id]; ok || c.born[id] >= mark {
			continue
		}
		if uid, ok := c.remove(id); ok {
			removed++
			touched = append(touched, uid)
		}
	}
	c.mu.Unlock()
	for _, uid := range touched {
		c.notifyPod(uid)
	}
	return removed
}

// stateOf tells what is known of an ID without building anything.
func (c *cache) stateOf(id string) (ready bool, state State, known bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	pod := c.pods[c.owner[id]]
	if pod == nil {
		return false, 0, false
	}
	for _, b := range pod.Sandboxes {
		if b.ID == id {
			return b.Ready, 0, true
		}
	}
	for _, n := range pod.Containers {
		if n.ID == id {
			return false, n.State, true
		}
	}
	return false, 0, false
}
