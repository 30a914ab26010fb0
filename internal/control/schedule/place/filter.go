package place

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/podutil"
)

// verdict is why a node cannot take a pod. Final reasons are ones that taking
// pods off the node would not change.
type verdict struct {
	reasons []string
	final   bool
}

func (v *verdict) ok() bool { return len(v.reasons) == 0 }

func never(reason string) verdict  { return verdict{[]string{reason}, true} }
func notNow(reason string) verdict { return verdict{[]string{reason}, false} }

// filters run in this order on every node and stop at the first refusal. Only
// the resource filter gives several reasons at once.
var filters = []struct {
	name  string
	check func(*cycle, *view) verdict
}{
	{"unschedulable", (*cycle).unschedulable},
	{"node name", (*cycle).nodeName},
	{"taints", (*cycle).taints},
	{"node affinity", (*cycle).nodeAffinity},
	{"ports", (*cycle).freePorts},
	{"resources", (*cycle).resources},
	{"exclusive volumes", (*cycle).exclusiveVolumes},
	{"volume limits", (*cycle).volumeLimits},
	{"volumes", (*cycle).volumesReach},
	{"devices", (*cycle).devicesReach},
	{"topology spread", (*cycle).spreadFits},
	{"pod affinity", (*cycle).podAffinity},
}

// fits runs the filters on one node, first counting in the pods of equal or
// higher priority that are nominated to it, then without them: a pod must fit
// whether or not they arrive.
func (c *cycle) fits(n *node) verdict {
	w := viewOf(n)
	if len(c.s.nominated[n.name]) > 0 {
		with := viewOf(n)
		for uid, p := range c.s.nominated[n.name] {
			if uid != c.pod.Obj.UID && p.Priority >= c.pod.Priority {
				with.extra = append(with.extra, p)
				with.requested = with.requested.add(p.Request, 1)
				c.shift(p, n, 1)
			}
		}
		if len(with.extra) > 0 {
			v := c.run(&with)
			for _, p := range with.extra {
				c.shift(p, n, -1)
			}
			if !v.ok() {
				return v
			}
		}
	}
	return c.run(&w)
}

func (c *cycle) run(w *view) verdict {
	for i := range filters {
		if v := filters[i].check(c, w); !v.ok() {
			return v
		}
	}
	return verdict{}
}

func (c *cycle) unschedulable(w *view) verdict {
	if !w.obj.Spec.Unschedulable {
		return verdict{}
	}
	taint := v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}
	if podutil.Tolerates(c.pod.Obj.Spec.Tolerations, &taint) {
		return verdict{}
	}
	return never("node(s) were unschedulable")
}

func (c *cycle) nodeName(w *view) verdict {
	if want := c.pod.Obj.Spec.NodeName; want != "" && want != w.name {
		return never("node(s) didn't match the requested node name")
	}
	return verdict{}
}

func (c *cycle) taints(w *view) verdict {
	if t := untolerated(w.obj.Spec.Taints, c.pod.Obj.Spec.Tolerations); t != nil {
		return never(fmt.Sprintf("node(s) had untolerated taint {%s: %s}", t.Key, t.Value))
	}
	return verdict{}
}

func (c *cycle) nodeAffinity(w *view) verdict {
	if c.required == nil {
		return verdict{}
	}
	if c.only == nil || c.only[w.name] {
		if ok, err := c.required.Match(w.obj); ok && err == nil {
			return verdict{}
		}
	}
	return never("node(s) didn't match Pod's node affinity/selector")
}

func (c *cycle) freePorts(w *view) verdict {
	if len(c.pod.ports) == 0 || (w.ports == 0 && len(w.extra) == 0) {
		return verdict{}
	}
	clash := false
	w.eachPod(func(o *Pod) bool {
		for _, a := range o.ports {
			for _, b := range c.pod.ports {
				clash = clash || a.clashes(b)
			}
		}
		return !clash
	})
	if clash {
		return notNow("node(s) didn't have free ports for the requested pod ports")
	}
	return verdict{}
}

func (c *cycle) resources(w *view) verdict {
	want, have, used := &c.pod.Request, &w.allocatable, &w.requested
	var v verdict
	short := func(name string, want, have, used int64) {
		if want > 0 && want > have-used {
			v.reasons = append(v.reasons, "Insufficient "+name)
			// More than the empty node has: no victim helps.
			v.final = v.final || want > have
		}
	}
	if used.Pods+1 > have.Pods {
		v.reasons = append(v.reasons, "Too many pods")
		v.final = have.Pods < 1
	}
	short("cpu", want.MilliCPU, have.MilliCPU, used.MilliCPU)
	short("memory", want.Memory, have.Memory, used.Memory)
	short("ephemeral-storage", want.Ephemeral, have.Ephemeral, used.Ephemeral)
	for name, n := range want.Scalar {
		short(string(name), n, have.Scalar[name], used.Scalar[name])
	}
	return v
}

func (c *cycle) exclusiveVolumes(w *view) verdict {
	for i := range c.claims {
		n := &c.claims[i]
		if !n.exclusive {
			continue
		}
		key := types.NamespacedName{Namespace: c.pod.Obj.Namespace, Name: n.claim.Name}
		users := c.s.claimUsers[key]
		for uid := range w.gone {
			for _, name := range w.pods[uid].claims {
				if name == n.claim.Name && w.pods[uid].Obj.Namespace == key.Namespace {
					users--
				}
			}
		}
		if users > 0 {
			return notNow("node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by " +
				"another pod")
		}
	}
	return verdict{}
}

func (c *cycle) spreadFits(w *view) verdict {
	for i := range c.spreads {
		st := &c.spreads[i]
		v, ok := w.obj.Labels[st.key]
		if !ok {
			return never("node(s) didn't match pod topology spread constraints (missing required label)")
		}
		if st.counts[v]+st.self-st.lowest() > st.maxSkew {
			return notNow("node(s) didn't match pod topology spread constraints")
		}
	}
	return verdict{}
}

func (c *cycle) podAffinity(w *view) verdict {
	if len(c.pod.affinity) > 0 && !c.affinityHolds(w) {
		return never("node(s) didn't match pod affinity rules")
	}
	for i := range c.pod.anti {
		if v, ok := w.obj.Labels[c.pod.anti[i].key]; ok && c.unwanted[i][v] > 0 {
			return notNow("node(s) didn't match pod anti-affinity rules")
		}
	}
	for p, n := range c.refused {
		if n > 0 && w.obj.Labels[p.key] == p.value && has(w.obj.Labels, p.key) {
			return notNow("node(s) didn't satisfy existing pods anti-affinity rules")
		}
	}
	return verdict{}
}

// affinityHolds says whether every term finds a selected pod in the node's
// topology value; or no selected pod exists anywhere and the pod selects
// itself, in which case it is the first of its group and any node that has the
// keys will do.
func (c *cycle) affinityHolds(w *view) bool {
	all, none := true, true
	for i := range c.pod.affinity {
		v, ok := w.obj.Labels[c.pod.affinity[i].key]
		if !ok {
			return false
		}
		all = all && c.wanted[i][v] > 0
		none = none && len(c.wanted[i]) == 0
	}
	return all || (none && c.selfMatch)
}

func has(l labels.Set, key string) bool { _, ok := l[key]; return ok }
