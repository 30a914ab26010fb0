package nodeauthz

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/control/auth/podref"
	"github.com/berth-dev/berth/internal/control/auth/policy"
	"github.com/berth-dev/berth/internal/control/auth/rbac"
	"github.com/berth-dev/berth/internal/podutil"
)

// Config is what the Authorizer needs.
type Config struct {
	// Informers feed the graph; the caller starts them.
	Informers informers.SharedInformerFactory
	// ResourceSlices says that the server serves them, so that they can be
	// watched.
	ResourceSlices bool
	// Patience is how long a question about a single object may wait for news
	// of the node before the answer is no. A node learns of a pod through the
	// same kind of watch that feeds the graph, and asks for the pod's secrets
	// at once: without patience it would often be refused and back off. Zero
	// answers at once.
	Patience time.Duration
}

// Authorizer answers for nodes and has no opinion on anyone else, nor on what
// it does not allow. Safe for concurrent use.
type Authorizer struct {
	patience time.Duration
	static   *rbac.Index
	synced   []cache.InformerSynced
	waiting  atomic.Int64

	mu    sync.RWMutex
	graph *graph
	// news holds a channel for each node someone waits for; it is closed when
	// the node reaches something new.
	news map[string]chan struct{}
}

// maxWaiting bounds how many requests may wait at once; the others are
// answered from what is known.
const maxWaiting = 512

// New registers handlers on the factory's informers.
func New(cfg Config) (*Authorizer, error) {
	a := &Authorizer{patience: cfg.Patience, static: rbac.NewIndex(), graph: newGraph(), news: map[string]chan struct{}{}}
	a.static.SetRole(rbac.RoleKey{Name: "system:node"}, policy.NodeRules())
	a.static.SetBinding(rbac.BindingKey{Name: "system:node"}, rbacv1.RoleRef{Kind: "ClusterRole", Name: "system:node"},
		[]rbacv1.Subject{{Kind: rbacv1.GroupKind, Name: user.NodesGroup}})
	feeds := map[string]cache.SharedIndexInformer{
		"Pods":                   cfg.Informers.Core().V1().Pods().Informer(),
		"PersistentVolumes":      cfg.Informers.Core().V1().PersistentVolumes().Informer(),
		"PodCertificateRequests": cfg.Informers.Certificates().V1().PodCertificateRequests().Informer(),
		"VolumeAttachments":      cfg.Informers.Storage().V1().VolumeAttachments().Informer(),
	}
	if cfg.ResourceSlices {
		feeds["ResourceSlices"] = cfg.Informers.Resource().V1().ResourceSlices().Informer()
	}
	for what, informer := range feeds {
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    a.set,
			UpdateFunc: func(_, obj any) { a.set(obj) },
			DeleteFunc: a.forget,
		})
		if err != nil {
			return nil, fmt.Errorf("watching %s for the Node authorizer: %w", what, err)
		}
		a.synced = append(a.synced, registration.HasSynced)
	}
	return a, nil
}

// HasSynced says whether the graph holds everything of the first lists.
func (a *Authorizer) HasSynced() bool {
	for _, synced := range a.synced {
		if !synced() {
			return false
		}
	}
	return true
}

func (a *Authorizer) set(obj any) {
	switch o := obj.(type) {
	case *corev1.Pod:
		refs := refsOf(o)
		a.change(func(g *graph) { g.SetPod(podKey{o.Namespace, o.Name}, o.Spec.NodeName, refs) })
	case *corev1.PersistentVolume:
		secrets := podref.SecretsOfVolume(o)
		a.change(func(g *graph) {
			if claim := o.Spec.ClaimRef; claim != nil {
				g.SetVolume(o.Name, claim.Namespace, claim.Name, secrets)
			} else {
				g.DeleteVolume(o.Name)
			}
		})
	case *storagev1.VolumeAttachment:
		a.change(func(g *graph) { g.SetOwned(owned{Attachment, o.Name}, o.Spec.NodeName) })
	case *resourcev1.ResourceSlice:
		node := ""
		if o.Spec.NodeName != nil {
			node = *o.Spec.NodeName
		}
		a.change(func(g *graph) { g.SetOwned(owned{Slice, o.Name}, node) })
	case *certificatesv1.PodCertificateRequest:
		a.change(func(g *graph) { g.SetOwned(owned{PodCertificate, o.Namespace + "/" + o.Name}, string(o.Spec.NodeName)) })
	}
}

// refsOf returns what the pod lets its node read. A mirror pod lets it read
// nothing: the node itself wrote it.
func refsOf(pod *corev1.Pod) []podref.Ref {
	if podutil.Mirror(pod) || pod.Spec.NodeName == "" {
		return nil
	}
	return podref.OfPod(pod)
}

func (a *Authorizer) forget(obj any) {
	if last, unseen := obj.(cache.DeletedFinalStateUnknown); unseen {
		obj = last.Obj
	}
	switch o := obj.(type) {
	case *corev1.Pod:
		a.change(func(g *graph) { g.DeletePod(podKey{o.Namespace, o.Name}) })
	case *corev1.PersistentVolume:
		a.change(func(g *graph) { g.DeleteVolume(o.Name) })
	case *storagev1.VolumeAttachment:
		a.change(func(g *graph) { g.SetOwned(owned{Attachment, o.Name}, "") })
	case *resourcev1.ResourceSlice:
		a.change(func(g *graph) { g.SetOwned(owned{Slice, o.Name}, "") })
	case *certificatesv1.PodCertificateRequest:
		a.change(func(g *graph) { g.SetOwned(owned{PodCertificate, o.Namespace + "/" + o.Name}, "") })
	}
}

func (a *Authorizer) change(f func(*graph)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f(a.graph)
	for _, node := range a.graph.Gained() {
		if received := a.news[node]; received != nil {
			close(received)
			delete(a.news, node)
		}
	}
}

// Authorize allows what a node may do and has no opinion on the rest.
func (a *Authorizer) Authorize(ctx context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	node, isNode := NodeIdentity(attributes.GetUser())
	if !isNode {
		return authorizer.DecisionNoOpinion, "", nil
	}
	if node == "" {
		return authorizer.DecisionNoOpinion, fmt.Sprintf("unknown node for user %q", attributes.GetUser().GetName()), nil
	}
	switch q := examine(node, attributes); q.verdict {
	case allow:
		return authorizer.DecisionAllow, "", nil
	case ask:
		if a.holds(ctx, node, q) {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, fmt.Sprintf("%s: node '%s'", q.reason, node), nil
	case static:
		if a.static.Evaluate(attributes).Allowed {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	default:
		return authorizer.DecisionNoOpinion, q.reason, nil
	}
}

// ConditionsAwareAuthorize answers like Authorize: there are no conditions.
func (a *Authorizer) ConditionsAwareAuthorize(ctx context.Context, attributes authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(a.Authorize(ctx, attributes))
}

// EvaluateConditions refuses: this authorizer never hands out conditions.
func (a *Authorizer) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision,
	authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// holds asks the graph and, while the answer is no, again at each news of the
// node until patience ends.
func (a *Authorizer) holds(ctx context.Context, node string, q question) bool {
	a.mu.RLock()
	yes := a.graph.answer(node, q)
	a.mu.RUnlock()
	if yes || a.patience <= 0 {
		return yes
	}
	if a.waiting.Add(1) > maxWaiting {
		a.waiting.Add(-1)
		return false
	}
	defer a.waiting.Add(-1)
	patience := time.NewTimer(a.patience)
	defer patience.Stop()
	for {
		received, yes := a.listen(node, q)
		if yes {
			return true
		}
		select {
		case <-received:
		case <-patience.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// listen asks once more and, if the answer is still no, returns what the next
// news of the node will close: nothing can happen between the two.
func (a *Authorizer) listen(node string, q question) (received chan struct{}, yes bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.graph.answer(node, q) {
		return nil, true
	}
	received = a.news[node]
	if received == nil {
		received = make(chan struct{})
		a.news[node] = received
	}
	return received, false
}

func (g *graph) answer(node string, q question) bool {
	switch {
	case q.ref != nil:
		return g.Reaches(node, *q.ref)
	case q.pod != nil:
		return g.RunsOn(node, *q.pod)
	default:
		return g.Owns(node, *q.owned)
	}
}
