package why

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/internal/podutil"
)

var claimMissing = regexp.MustCompile(`persistentvolumeclaim "([^"]+)" (not found|is being deleted)`)

// podUnscheduled tells why no node was chosen.
func podUnscheduled(w *World, p *v1.Pod, events []*v1.Event) *Answer {
	if p.Spec.NodeName != "" || p.Status.Phase != v1.PodPending && p.Status.Phase != "" {
		return nil
	}
	for i, g := range p.Spec.SchedulingGates {
		return found(Waiting, "SchedulingGate", "scheduling gate %s holds the pod: the scheduler does not look at it until it is removed",
			g.Name).at(fmt.Sprintf("spec.schedulingGates[%d]", i)).remedy("remove the gate, or start the controller that does")
	}
	message := ""
	if c := podCondition(p, v1.PodScheduled); c != nil && c.Status == v1.ConditionFalse {
		message = c.Message
	}
	if e := lastEvent(events, "FailedScheduling"); e != nil && message == "" {
		message = e.Message
	}
	if message == "" {
		old := Age(w.Now, p.CreationTimestamp.Time)
		if p.Spec.SchedulerName != v1.DefaultSchedulerName && p.Spec.SchedulerName != "" {
			return found(Failing, "SchedulerUnknown", "no scheduler named %s has looked at the pod in %s", p.Spec.SchedulerName, old).
				at("spec.schedulerName").remedy("start that scheduler, or name default-scheduler")
		}
		return found(Waiting, "NotLookedAt", "the scheduler has not looked at the pod yet (%s old)", old).
			remedy("berth status tells whether the scheduler runs")
	}
	if a := claimHolds(w, p, message); a != nil {
		return a.fact("scheduler", "%s", brief(message, 300))
	}
	return nodesRefuse(w, p, message).fact("scheduler", "%s", brief(message, 300)).from("Node")
}

// claimHolds follows a pod that waits for one of its claims.
func claimHolds(w *World, p *v1.Pod, message string) *Answer {
	if m := claimMissing.FindStringSubmatch(message); m != nil {
		state := "does not exist"
		if m[2] != "not found" {
			state = "is being deleted"
		}
		return found(Failing, "ClaimMissing", "PersistentVolumeClaim %s %s in namespace %s; the pod needs it", m[1], state, p.Namespace).
			at("spec.volumes").held("PersistentVolumeClaim", p.Namespace, m[1]).remedy("create the claim, or fix its name in spec.volumes")
	}
	if !strings.Contains(message, "PersistentVolume") && !strings.Contains(message, "volume") {
		return nil
	}
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		name := v.PersistentVolumeClaim.ClaimName
		c := one[v1.PersistentVolumeClaim](w, p.Namespace, name)
		if c == nil || c.Status.Phase == v1.ClaimBound {
			continue
		}
		if a := claim(w, c, true); a != nil && a.State != Healthy {
			a.Cause = "PersistentVolumeClaim " + name + ": " + a.Cause
			return a.held("PersistentVolumeClaim", p.Namespace, name).from("PersistentVolumeClaim")
		}
	}
	return nil
}

// nodesRefuse judges each node for the pod as the scheduler's filters do, for
// the reasons that fields of the two can tell; the scheduler's own words are
// the last resort.
func nodesRefuse(w *World, p *v1.Pod, message string) *Answer {
	nodes := all[v1.Node](w)
	counts, fields, why := map[string]int{}, map[string]string{}, []string{}
	for _, n := range nodes {
		reason, field := refusal(w, p, n)
		if reason == "" {
			continue
		}
		if counts[reason]++; counts[reason] == 1 {
			why = append(why, reason)
		}
		fields[reason] = field
	}
	slices.SortStableFunc(why, func(a, b string) int { return counts[b] - counts[a] })
	if len(nodes) == 0 || len(why) == 0 {
		code, text := wordsOf(message)
		return found(Failing, code, "no node fits: %s", text).at(fieldOf(message))
	}
	var parts []string
	for _, reason := range why {
		parts = append(parts, fmt.Sprintf("%d: %s", counts[reason], reason))
	}
	a := found(Failing, "NoNodeFits", "0 of %d nodes fit: %s", len(nodes), strings.Join(parts[:min(len(parts), 3)], "; ")).at(
		fields[why[0]])
	if len(nodes) == 1 {
		a.Cause = fmt.Sprintf("the only node %s does not fit: %s", nodes[0].Name, why[0])
	}
	for i, n := range nodes {
		if reason, _ := refusal(w, p, n); i < 12 && reason != "" {
			a.fact("  "+n.Name, "%s", reason)
		}
	}
	return a
}

// refusal tells why a node does not take the pod, and which field of the pod
// asks for what it has not.
func refusal(w *World, p *v1.Pod, n *v1.Node) (reason, field string) {
	if n.Spec.Unschedulable && !toleratesKey(p, v1.TaintNodeUnschedulable) {
		return "cordoned (spec.unschedulable)", "spec.unschedulable of the node"
	}
	if len(p.Spec.NodeSelector) > 0 {
		for _, k := range sortedKeys(p.Spec.NodeSelector) {
			if v := p.Spec.NodeSelector[k]; n.Labels[k] != v {
				return fmt.Sprintf("nodeSelector wants label %s=%s", k, v), "spec.nodeSelector"
			}
		}
	}
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(n); err != nil || !ok {
		return "nodeAffinity does not match its labels (" + affinityText(p) + ")",
			"spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
	}
	if t, bad := corev1.FindMatchingUntoleratedTaint(klog.Background(), n.Spec.Taints, p.Spec.Tolerations, func(t *v1.Taint) bool {
		return t.Effect == v1.TaintEffectNoSchedule || t.Effect == v1.TaintEffectNoExecute
	}, true); bad {
		return "taint " + t.ToString() + " is not tolerated", "spec.tolerations"
	}
	if reason, field := lacks(w, p, n); reason != "" {
		return reason, field
	}
	return "", ""
}

func toleratesKey(p *v1.Pod, key string) bool {
	for _, t := range p.Spec.Tolerations {
		if t.Operator == v1.TolerationOpExists && (t.Key == "" || t.Key == key) {
			return true
		}
	}
	return false
}

// affinityText is the first expression of a required node affinity.
func affinityText(p *v1.Pod) string {
	if p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil {
		return ""
	}
	r := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if r == nil {
		return ""
	}
	for _, t := range r.NodeSelectorTerms {
		for _, e := range append(t.MatchExpressions, t.MatchFields...) {
			return brief(fmt.Sprintf("%s %s %s", e.Key, e.Operator, strings.Join(e.Values, ",")), 80)
		}
	}
	return ""
}

// lacks tells which resource a node has too little of.
func lacks(w *World, p *v1.Pod, n *v1.Node) (reason, field string) {
	asks := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	used, pods := v1.ResourceList{}, 0
	for _, o := range all[v1.Pod](w) {
		if o.Spec.NodeName != n.Name || podutil.Terminal(o) {
			continue
		}
		pods++
		for name, q := range resourcehelper.PodRequests(o, resourcehelper.PodResourcesOptions{}) {
			sum := used[name]
			sum.Add(q)
			used[name] = sum
		}
	}
	for _, name := range sortedResources(asks) {
		want := asks[name]
		have, exists := n.Status.Allocatable[name]
		switch {
		case want.IsZero():
		case !exists:
			return fmt.Sprintf("has no %s (asks %s)", name, want.String()), "spec.containers[].resources.requests." + string(name)
		case want.Cmp(have) > 0:
			return fmt.Sprintf("Insufficient %s: asks %s, the whole node has %s", name, want.String(), have.String()),
				"spec.containers[].resources.requests." + string(name)
		default:
			free := have.DeepCopy()
			free.Sub(used[name])
			if want.Cmp(free) > 0 {
				return fmt.Sprintf("Insufficient %s: asks %s, %s of %s is free", name, want.String(), positive(free), have.String()),
					"spec.containers[].resources.requests." + string(name)
			}
		}
	}
	if most := n.Status.Allocatable.Pods().Value(); most > 0 && int64(pods) >= most {
		return fmt.Sprintf("has %d of %d pods", pods, most), "status.allocatable.pods of the node"
	}
	return "", ""
}

func positive(q resource.Quantity) string {
	if q.Sign() < 0 {
		return "0"
	}
	return q.String()
}

// rules of the scheduler by the words of its message: code, field, in plain words.
var rules = []struct{ words, code, field, text string }{
	{"match pod anti-affinity rules", "PodAntiAffinity", "spec.affinity.podAntiAffinity", "podAntiAffinity of the pod excludes them"},
	{"anti-affinity rules", "PodAntiAffinity", "spec.affinity.podAntiAffinity",
		"podAntiAffinity of a pod that runs there excludes this one"},
	{"match pod affinity rules", "PodAffinity", "spec.affinity.podAffinity", "podAffinity wants a pod that runs on none of them"},
	{"topology spread", "TopologySpread", "spec.topologySpreadConstraints", "topologySpreadConstraints would be violated"},
	{"free ports", "HostPort", "spec.containers[].ports[].hostPort", "the hostPort is taken"},
	{"volume node affinity", "VolumeNodeAffinity", "spec.volumes", "the volume is bound to another node (its nodeAffinity)"},
	{"available persistent volumes", "NoVolume", "spec.volumes", "no PersistentVolume matches a claim of the pod"},
	{"enough free storage", "NoStorage", "spec.volumes", "no node has enough free storage for a claim"},
	{"didn't have free", "HostPort", "spec.containers[].ports[].hostPort", "the hostPort is taken"},
	{"cannot allocate all claims", "DeviceClaim", "spec.resourceClaims", "no device satisfies a ResourceClaim of the pod"},
	{"resourceclaim", "DeviceClaim", "spec.resourceClaims", "a ResourceClaim of the pod is not ready"},
}

// wordsOf finds the rule a scheduler's message speaks of.
func wordsOf(message string) (code, text string) {
	for _, r := range rules {
		if strings.Contains(message, r.words) {
			return r.code, r.text + " (" + brief(message, 160) + ")"
		}
	}
	return "NoNodeFits", brief(message, 240)
}

func fieldOf(message string) string {
	for _, r := range rules {
		if strings.Contains(message, r.words) {
			return r.field
		}
	}
	return ""
}

func sortedKeys[V any](m map[string]V) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func sortedResources(m v1.ResourceList) []v1.ResourceName {
	var out []v1.ResourceName
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// stale is how old a heartbeat may be before its node is suspect; the default
// node-monitor-grace-period of upstream.
const stale = 50 * time.Second
