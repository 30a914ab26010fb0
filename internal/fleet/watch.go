package fleet

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// watchNodes follows the fleet's Node objects, with one watch for all.
func (f *fleet) watchNodes(ctx context.Context, listed func()) {
	only := labels.SelectorFromSet(labels.Set{Label: f.cfg.Prefix}).String()
	nodes := f.client.CoreV1().Nodes()
	f.follow(ctx, &v1.Node{}, nodeStore{f, listed}, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = only
			return nodes.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = only
			return nodes.Watch(ctx, o)
		},
	})
}

// watchPods follows every pod that is bound, with one watch for all nodes.
func (f *fleet) watchPods(ctx context.Context) {
	bound := fields.OneTermNotEqualSelector("spec.nodeName", "").String()
	pods := f.client.CoreV1().Pods(metav1.NamespaceAll)
	f.follow(ctx, &v1.Pod{}, podStore{f}, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = bound
			return pods.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = bound
			return pods.Watch(ctx, o)
		},
	})
}

func (f *fleet) follow(ctx context.Context, kind runtime.Object, store cache.ReflectorStore, lw *cache.ListWatch) {
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, f.client), kind, store,
		cache.ReflectorOptions{Name: "fleet"}).RunWithContext(ctx)
}

// nodeStore hands what a watch tells straight to the nodes. It keeps nothing:
// each node keeps its own object.
type nodeStore struct {
	f      *fleet
	listed func() // called when a whole list has arrived
}

func (s nodeStore) Add(o any) error {
	if n, ok := o.(*v1.Node); ok {
		if h := s.f.byName[n.Name]; h != nil {
			h.learn(n)
		}
	}
	return nil
}

func (s nodeStore) Update(o any) error { return s.Add(o) }

func (s nodeStore) Delete(o any) error {
	if n, ok := o.(*v1.Node); ok {
		if h := s.f.byName[n.Name]; h != nil {
			h.gone()
		}
	}
	return nil
}

func (s nodeStore) Replace(list []any, _ string) error {
	there := map[string]bool{}
	for _, o := range list {
		if n, ok := o.(*v1.Node); ok {
			there[n.Name] = true
		}
		_ = s.Add(o)
	}
	for _, h := range s.f.nodes {
		if h.agent.UID() != "" && !there[h.name] {
			h.gone()
		}
	}
	s.listed()
	return nil
}

func (nodeStore) Resync() error { return nil }

// podStore does the same for pods.
type podStore struct{ f *fleet }

func (s podStore) Add(o any) error {
	if p, ok := o.(*v1.Pod); ok {
		if h := s.f.byName[p.Spec.NodeName]; h != nil {
			h.onPod(p)
		}
	}
	return nil
}

func (s podStore) Update(o any) error { return s.Add(o) }

func (s podStore) Delete(o any) error {
	if p, ok := o.(*v1.Pod); ok {
		if h := s.f.byName[p.Spec.NodeName]; h != nil {
			h.onPodDelete(p.UID)
		}
	}
	return nil
}

func (s podStore) Replace(list []any, _ string) error {
	there := map[types.UID]bool{}
	for _, o := range list {
		if p, ok := o.(*v1.Pod); ok {
			there[p.UID] = true
		}
		_ = s.Add(o)
	}
	for _, h := range s.f.nodes {
		h.mu.Lock()
		var lost []types.UID
		for uid := range h.pods {
			if !there[uid] {
				lost = append(lost, uid)
			}
		}
		h.mu.Unlock()
		for _, uid := range lost {
			h.onPodDelete(uid)
		}
	}
	return nil
}

func (podStore) Resync() error { return nil }
