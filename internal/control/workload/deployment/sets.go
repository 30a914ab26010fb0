package deployment

import (
	"encoding/json"
	"hash/fnv"
	"maps"
	"math"
	"sort"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/berth-dev/berth/internal/control/workload/podcontrol"
)

// Annotations of the API contract: kubectl's rollout commands read them.
const (
	revisionAnnotation = "deployment.kubernetes.io/revision"
	historyAnnotation  = "deployment.kubernetes.io/revision-history"
	desiredAnnotation  = "deployment.kubernetes.io/desired-replicas"
	maxAnnotation      = "deployment.kubernetes.io/max-replicas"
	rollbackAnnotation = "deprecated.deployment.rollback.to"
)

// notCopied are the Deployment's annotations that its sets do not inherit.
var notCopied = map[string]bool{
	v1.LastAppliedConfigAnnotation: true, revisionAnnotation: true, historyAnnotation: true,
	desiredAnnotation: true, maxAnnotation: true, rollbackAnnotation: true,
}

// split finds the set of the current template; of several, the oldest.
func split(d *appsv1.Deployment, sets []*appsv1.ReplicaSet) (current *appsv1.ReplicaSet, old []*appsv1.ReplicaSet) {
	sorted := append([]*appsv1.ReplicaSet(nil), sets...)
	sort.SliceStable(sorted, func(i, j int) bool {
		a, b := sorted[i], sorted[j]
		if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
			return a.CreationTimestamp.Before(&b.CreationTimestamp)
		}
		return a.Name < b.Name
	})
	for _, s := range sorted {
		if current == nil && sameTemplate(&s.Spec.Template, &d.Spec.Template) {
			current = s
		} else {
			old = append(old, s)
		}
	}
	return current, old
}

// sameTemplate compares templates but for the hash label sets add.
func sameTemplate(a, b *v1.PodTemplateSpec) bool {
	x, y := a.DeepCopy(), b.DeepCopy()
	delete(x.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	delete(y.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	return equality.Semantic.DeepEqual(x, y)
}

// hash names a template; collisions changes the name when it is taken.
func hash(t *v1.PodTemplateSpec, collisions *int32) string {
	h := fnv.New32a()
	// Encoding API types to JSON cannot fail, and map keys come sorted.
	b, _ := json.Marshal(t)
	h.Write(b)
	if collisions != nil {
		h.Write([]byte(strconv.Itoa(int(*collisions))))
	}
	return rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10))
}

func revisionOf(o metav1.Object) int64 {
	n, err := strconv.ParseInt(o.GetAnnotations()[revisionAnnotation], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// syncRevisions keeps the current set's annotations: one revision above every
// old set, the revisions it had before, and what it inherits.
func (r *rollout) syncRevisions() {
	var top int64
	for _, s := range r.old {
		top = max(top, revisionOf(s))
	}
	revision := top + 1
	if r.newSet == nil {
		if !r.D.Spec.Paused {
			r.plan.Revision = strconv.FormatInt(revision, 10)
		}
		return
	}
	s := r.newSet
	notes := with(s.Annotations, r.inherited())
	if have := revisionOf(s); have < revision {
		if have > 0 {
			notes[historyAnnotation] = strings.TrimPrefix(notes[historyAnnotation]+","+strconv.FormatInt(have, 10), ",")
		}
		notes[revisionAnnotation] = strconv.FormatInt(revision, 10)
	}
	r.plan.Revision = notes[revisionAnnotation]
	r.notes[s.UID] = notes
	if !same(notes, s.Annotations) || s.Spec.MinReadySeconds != r.D.Spec.MinReadySeconds {
		r.plan.Steps = append(r.plan.Steps, step{Verb: Annotate, Set: s, Annotations: notes, MinReady: r.D.Spec.MinReadySeconds})
	}
}

func (r *rollout) inherited() map[string]string {
	out := map[string]string{}
	for k, v := range r.D.Annotations {
		if !notCopied[k] {
			out[k] = v
		}
	}
	return out
}

// create plans the current template's set. The plan ends there: what follows
// depends on how that goes.
func (r *rollout) create(size int32) {
	t := r.D.Spec.Template.DeepCopy()
	h := hash(t, r.D.Status.CollisionCount)
	t.Labels = with(t.Labels, map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: h})
	sel := r.D.Spec.Selector.DeepCopy()
	sel.MatchLabels = with(sel.MatchLabels, map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: h})
	notes := with(with(r.inherited(), r.sizeNotes()), map[string]string{revisionAnnotation: r.plan.Revision})
	r.plan.Steps = append(r.plan.Steps, step{Verb: Create, Replicas: size, Set: &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: r.D.Name + "-" + h, Namespace: r.D.Namespace, Labels: t.Labels, Annotations: notes,
			OwnerReferences: []metav1.OwnerReference{podcontrol.Owner(r.D, "apps/v1", "Deployment")}},
		Spec: appsv1.ReplicaSetSpec{Replicas: &size, MinReadySeconds: r.D.Spec.MinReadySeconds, Selector: sel, Template: *t},
	}})
}

// sizeChanged says whether the Deployment was scaled since its sets were.
func (r *rollout) sizeChanged() bool {
	for _, s := range r.Sets {
		if r.spec[s.UID] == 0 {
			continue
		}
		if n, ok := number(s.Annotations[desiredAnnotation]); ok && n != r.replicas {
			return true
		}
	}
	return false
}

func number(s string) (int32, bool) {
	n, err := strconv.ParseInt(s, 10, 32)
	return int32(n), err == nil
}

// scaleTogether changes the Deployment's size in the middle of a rollout:
// every active set takes its share, so that the risk stays as it was.
func (r *rollout) scaleTogether() {
	active := r.active()
	if len(active) <= 1 {
		one := r.newSet
		if len(active) == 1 {
			one = active[0]
		}
		if one == nil && len(r.old) > 0 {
			one = r.old[len(r.old)-1]
		}
		if one != nil && (len(active) == 1 || r.D.Spec.Paused || one == r.newSet) {
			r.scale(one, r.replicas)
		}
		return
	}
	if r.saturated() {
		for _, s := range r.old {
			if r.spec[s.UID] > 0 {
				r.scale(s, 0)
			}
		}
		return
	}
	if r.D.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
		r.share(active)
	}
}

func (r *rollout) active() (out []*appsv1.ReplicaSet) {
	for _, s := range r.Sets {
		if r.spec[s.UID] > 0 {
			out = append(out, s)
		}
	}
	return out
}

// saturated says whether the current set carries the whole Deployment.
func (r *rollout) saturated() bool {
	s := r.newSet
	if s == nil {
		return false
	}
	n, ok := number(s.Annotations[desiredAnnotation])
	return ok && n == r.replicas && r.spec[s.UID] == r.replicas && s.Status.AvailableReplicas == r.replicas
}

func (r *rollout) share(active []*appsv1.ReplicaSet) {
	allowed := int32(0)
	if r.replicas > 0 {
		allowed = r.replicas + r.maxSurge
	}
	left := allowed - r.total()
	// The largest first; of equals, grow newer and shrink older ones first.
	sort.SliceStable(active, func(i, j int) bool {
		a, b := active[i], active[j]
		if r.spec[a.UID] != r.spec[b.UID] {
			return r.spec[a.UID] > r.spec[b.UID]
		}
		if left > 0 {
			return b.CreationTimestamp.Before(&a.CreationTimestamp)
		}
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	})
	to := make([]int32, len(active))
	for i, s := range active {
		to[i] = r.spec[s.UID]
		if left != 0 {
			n := r.portion(s, left)
			to[i] += n
			left -= n
		}
	}
	// What rounding leaves goes to the largest.
	to[0] = max(to[0]+left, 0)
	for i, s := range active {
		r.scale(s, to[i])
	}
}

// portion is how many of the pods to add (or, negative, remove) a set takes:
// its present share of the total it was sized for.
func (r *rollout) portion(s *appsv1.ReplicaSet, left int32) int32 {
	have := r.spec[s.UID]
	var n int32
	if r.replicas == 0 {
		n = -have
	} else {
		was, ok := number(s.Annotations[maxAnnotation])
		if !ok || was <= 0 {
			was = max(r.D.Status.Replicas, 1)
		}
		n = int32(math.Round(float64(have)*float64(r.replicas+r.maxSurge)/float64(was))) - have
	}
	if left > 0 {
		return max(min(n, left), 0)
	}
	return min(max(n, left, -have), 0)
}

func (r *rollout) forgetHistoryWhenDone() {
	if len(r.plan.Steps) == 0 && r.complete(r.counts()) {
		r.forgetHistory()
	}
}

// forgetHistory deletes the empty old sets beyond the history limit, the
// lowest revisions first.
func (r *rollout) forgetHistory() {
	if r.D.Spec.RevisionHistoryLimit == nil || *r.D.Spec.RevisionHistoryLimit == math.MaxInt32 {
		return
	}
	var alive []*appsv1.ReplicaSet
	for _, s := range r.old {
		if s.DeletionTimestamp == nil {
			alive = append(alive, s)
		}
	}
	excess := len(alive) - int(*r.D.Spec.RevisionHistoryLimit)
	sort.SliceStable(alive, func(i, j int) bool { return revisionOf(alive[i]) < revisionOf(alive[j]) })
	for i := 0; i < excess; i++ {
		s := alive[i]
		if s.Status.Replicas == 0 && r.spec[s.UID] == 0 && sizeOf(s) == 0 && s.Generation <= s.Status.ObservedGeneration {
			r.plan.Steps = append(r.plan.Steps, step{Verb: Delete, Set: s})
		}
	}
}

func with(base, more map[string]string) map[string]string {
	out := make(map[string]string, len(base)+len(more))
	maps.Copy(out, base)
	maps.Copy(out, more)
	return out
}

func same(a, b map[string]string) bool { return maps.Equal(a, b) }
