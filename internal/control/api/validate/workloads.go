package validate

import (
	"fmt"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	machinery "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ownsTemplate checks what every workload has: a selector that is not empty and
// selects the pods of its own template, which must be restarted for ever.
func ownsTemplate(kind string, s *metav1.LabelSelector, t *v1.PodTemplateSpec) errs {
	at, template := specPath.Child("selector"), specPath.Child("template")
	var all errs
	if s == nil {
		all = append(all, field.Required(at, ""))
		all = append(all, field.Invalid(template.Child("metadata", "labels"), t.Labels, "`selector` does not match template `labels`"))
	} else {
		all = append(all, selector(at, s)...)
		if len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
			all = append(all, field.Invalid(at, s, fmt.Sprintf("empty selector is invalid for %s", kind)))
		}
		if parsed, err := metav1.LabelSelectorAsSelector(s); err == nil && !parsed.Empty() && !parsed.Matches(machinery.Set(t.Labels)) {
			all = append(all, field.Invalid(template.Child("metadata", "labels"), t.Labels, "`selector` does not match template `labels`"))
		}
	}
	all = append(all, podTemplate(template, t)...)
	return append(all, runsForEver(template, t)...)
}

func runsForEver(p *field.Path, t *v1.PodTemplateSpec) errs {
	var all errs
	if t.Spec.RestartPolicy != v1.RestartPolicyAlways && t.Spec.RestartPolicy != "" {
		all = append(all, field.NotSupported(p.Child("spec", "restartPolicy"), t.Spec.RestartPolicy,
			[]v1.RestartPolicy{v1.RestartPolicyAlways}))
	}
	if t.Spec.ActiveDeadlineSeconds != nil {
		all = append(all, field.Forbidden(p.Child("spec", "activeDeadlineSeconds"),
			"activeDeadlineSeconds is not supported here: the pods are meant to run for ever"))
	}
	return all
}

func Deployment(d *apps.Deployment) errs {
	s := &d.Spec
	all := notNegativeIfSet(specPath.Child("replicas"), s.Replicas)
	all = append(all, ownsTemplate("deployment", s.Selector, &s.Template)...)
	all = append(all, notNegative(specPath.Child("minReadySeconds"), s.MinReadySeconds)...)
	all = append(all, notNegativeIfSet(specPath.Child("revisionHistoryLimit"), s.RevisionHistoryLimit)...)
	if deadline := s.ProgressDeadlineSeconds; deadline != nil {
		all = append(all, notNegative(specPath.Child("progressDeadlineSeconds"), *deadline)...)
		if *deadline <= s.MinReadySeconds {
			all = append(all, field.Invalid(specPath.Child("progressDeadlineSeconds"), *deadline, "must be greater than minReadySeconds"))
		}
	}
	at := specPath.Child("strategy")
	all = append(all, mustBeOneOf(at.Child("type"), s.Strategy.Type, apps.RecreateDeploymentStrategyType,
		apps.RollingUpdateDeploymentStrategyType)...)
	rolling := s.Strategy.RollingUpdate
	switch {
	case s.Strategy.Type == apps.RecreateDeploymentStrategyType && rolling != nil:
		all = append(all, field.Forbidden(at.Child("rollingUpdate"), fmt.Sprintf("may not be specified when strategy `type` is '%s'",
			apps.RecreateDeploymentStrategyType)))
	case s.Strategy.Type == apps.RollingUpdateDeploymentStrategyType && rolling == nil:
		all = append(all, field.Required(at.Child("rollingUpdate"), "this should be defaulted and never be nil"))
	case s.Strategy.Type == apps.RollingUpdateDeploymentStrategyType:
		at = at.Child("rollingUpdate")
		all = append(all, amount(at.Child("maxUnavailable"), rolling.MaxUnavailable, true)...)
		all = append(all, amount(at.Child("maxSurge"), rolling.MaxSurge, false)...)
		if isNone(rolling.MaxUnavailable) && isNone(rolling.MaxSurge) {
			all = append(all, field.Invalid(at.Child("maxUnavailable"), rolling.MaxUnavailable, "may not be 0 when `maxSurge` is 0"))
		}
	}
	return all
}

// counters checks numbers of a status that cannot be negative, and that parts
// do not exceed the whole where there is one.
func counters(whole *int32, parts []struct {
	name  string
	value int32
}) errs {
	status := field.NewPath("status")
	var all errs
	for _, c := range parts {
		all = append(all, notNegative(status.Child(c.name), c.value)...)
		if whole != nil && c.value > *whole {
			all = append(all, field.Invalid(status.Child(c.name), c.value, "cannot be greater than status.replicas"))
		}
	}
	return all
}

type part = struct {
	name  string
	value int32
}

func DeploymentStatusUpdate(d, old *apps.Deployment) errs {
	s := &d.Status
	all := append(observed(s.ObservedGeneration),
		counters(nil, []part{{"replicas", s.Replicas}, {"unavailableReplicas", s.UnavailableReplicas},
			{"terminatingReplicas", deref(s.TerminatingReplicas)}})...)
	all = append(all, counters(&s.Replicas, []part{{"updatedReplicas", s.UpdatedReplicas}, {"readyReplicas", s.ReadyReplicas},
		{"availableReplicas", s.AvailableReplicas}})...)
	all = append(all, availableAreReady(s.AvailableReplicas, s.ReadyReplicas)...)
	return append(all, collisions(s.CollisionCount, old.Status.CollisionCount)...)
}

// availableAreReady wants no more pods to be available than are ready.
func availableAreReady(available, ready int32) errs {
	if available <= ready {
		return nil
	}
	return errs{field.Invalid(field.NewPath("status", "availableReplicas"), available, "cannot be greater than readyReplicas")}
}

// collisions wants the count of name collisions only to grow: names made from
// an earlier count are taken.
func collisions(now, before *int32) errs {
	at := field.NewPath("status", "collisionCount")
	all := notNegative(at, deref(now))
	if before != nil && (now == nil || *now < *before) {
		all = append(all, field.Invalid(at, deref(now), "cannot be decremented"))
	}
	return all
}

// observed wants a status to name a generation that was there.
func observed(generation int64) errs {
	return notNegative(field.NewPath("status", "observedGeneration"), generation)
}

func ReplicaSet(r *apps.ReplicaSet) errs {
	all := notNegativeIfSet(specPath.Child("replicas"), r.Spec.Replicas)
	all = append(all, notNegative(specPath.Child("minReadySeconds"), r.Spec.MinReadySeconds)...)
	return append(all, ownsTemplate("replicaset", r.Spec.Selector, &r.Spec.Template)...)
}

func ReplicaSetStatusUpdate(r, _ *apps.ReplicaSet) errs {
	s := &r.Status
	all := append(observed(s.ObservedGeneration), counters(nil, []part{{"replicas", s.Replicas},
		{"terminatingReplicas", deref(s.TerminatingReplicas)}})...)
	all = append(all, counters(&s.Replicas, []part{{"fullyLabeledReplicas", s.FullyLabeledReplicas}, {"readyReplicas", s.ReadyReplicas},
		{"availableReplicas", s.AvailableReplicas}})...)
	return append(all, availableAreReady(s.AvailableReplicas, s.ReadyReplicas)...)
}

func ReplicationController(rc *v1.ReplicationController) errs {
	all := notNegativeIfSet(specPath.Child("replicas"), rc.Spec.Replicas)
	all = append(all, notNegative(specPath.Child("minReadySeconds"), rc.Spec.MinReadySeconds)...)
	if len(rc.Spec.Selector) == 0 {
		all = append(all, field.Required(specPath.Child("selector"), ""))
	}
	at := specPath.Child("template")
	if rc.Spec.Template == nil {
		return append(all, field.Required(at, ""))
	}
	if s := machinery.Set(rc.Spec.Selector).AsSelectorPreValidated(); !s.Empty() && !s.Matches(machinery.Set(rc.Spec.Template.Labels)) {
		all = append(all, field.Invalid(at.Child("metadata", "labels"), rc.Spec.Template.Labels,
			"`selector` does not match template `labels`"))
	}
	all = append(all, podTemplate(at, rc.Spec.Template)...)
	return append(all, runsForEver(at, rc.Spec.Template)...)
}

// ReplicationControllerStatusUpdate checks what the controller of a
// ReplicationController tells.
func ReplicationControllerStatusUpdate(rc, _ *v1.ReplicationController) errs {
	s := &rc.Status
	all := append(observed(s.ObservedGeneration), counters(nil, []part{{"replicas", s.Replicas}})...)
	all = append(all, counters(&s.Replicas, []part{{"fullyLabeledReplicas", s.FullyLabeledReplicas}, {"readyReplicas", s.ReadyReplicas},
		{"availableReplicas", s.AvailableReplicas}})...)
	return append(all, availableAreReady(s.AvailableReplicas, s.ReadyReplicas)...)
}

func DaemonSet(d *apps.DaemonSet) errs {
	s := &d.Spec
	all := ownsTemplate("daemonset", s.Selector, &s.Template)
	all = append(all, notNegative(specPath.Child("minReadySeconds"), s.MinReadySeconds)...)
	all = append(all, notNegativeIfSet(specPath.Child("revisionHistoryLimit"), s.RevisionHistoryLimit)...)
	at := specPath.Child("updateStrategy")
	all = append(all, mustBeOneOf(at.Child("type"), s.UpdateStrategy.Type, apps.OnDeleteDaemonSetStrategyType,
		apps.RollingUpdateDaemonSetStrategyType)...)
	if s.UpdateStrategy.Type != apps.RollingUpdateDaemonSetStrategyType {
		return all
	}
	rolling := s.UpdateStrategy.RollingUpdate
	if rolling == nil {
		return append(all, field.Required(at.Child("rollingUpdate"), ""))
	}
	at = at.Child("rollingUpdate")
	all = append(all, amount(at.Child("maxUnavailable"), rolling.MaxUnavailable, true)...)
	all = append(all, amount(at.Child("maxSurge"), rolling.MaxSurge, true)...)
	switch gone, extra := isNone(rolling.MaxUnavailable), isNone(rolling.MaxSurge); {
	case gone && extra:
		all = append(all, field.Required(at.Child("maxUnavailable"), "cannot be 0 when maxSurge is 0"))
	case !gone && !extra:
		all = append(all, field.Invalid(at.Child("maxSurge"), rolling.MaxSurge, "may not be set when maxUnavailable is non-zero"))
	}
	return all
}

func DaemonSetStatusUpdate(d, old *apps.DaemonSet) errs {
	s := &d.Status
	all := append(observed(s.ObservedGeneration), counters(nil, []part{{"currentNumberScheduled", s.CurrentNumberScheduled},
		{"numberMisscheduled", s.NumberMisscheduled},
		{"desiredNumberScheduled", s.DesiredNumberScheduled}, {"numberReady", s.NumberReady},
		{"updatedNumberScheduled", s.UpdatedNumberScheduled},
		{"numberAvailable", s.NumberAvailable}, {"numberUnavailable", s.NumberUnavailable}})...)
	return append(all, collisions(s.CollisionCount, old.Status.CollisionCount)...)
}

func StatefulSet(s *apps.StatefulSet) errs {
	spec := &s.Spec
	all := ownsTemplate("statefulset", spec.Selector, withClaims(spec))
	all = append(all, notNegativeIfSet(specPath.Child("replicas"), spec.Replicas)...)
	all = append(all, notNegative(specPath.Child("minReadySeconds"), spec.MinReadySeconds)...)
	all = append(all, mustBeOneOf(specPath.Child("podManagementPolicy"), spec.PodManagementPolicy, apps.OrderedReadyPodManagement,
		apps.ParallelPodManagement)...)
	if spec.Ordinals != nil {
		all = append(all, notNegative(specPath.Child("ordinals", "start"), spec.Ordinals.Start)...)
	}
	at := specPath.Child("updateStrategy")
	strategy := &spec.UpdateStrategy
	all = append(all, mustBeOneOf(at.Child("type"), strategy.Type, apps.OnDeleteStatefulSetStrategyType,
		apps.RollingUpdateStatefulSetStrategyType)...)
	switch rolling := strategy.RollingUpdate; {
	case rolling == nil:
	case strategy.Type == apps.OnDeleteStatefulSetStrategyType:
		all = append(all, field.Invalid(at.Child("rollingUpdate"), rolling, fmt.Sprintf("only allowed for updateStrategy '%s'",
			apps.RollingUpdateStatefulSetStrategyType)))
	default:
		all = append(all, notNegativeIfSet(at.Child("rollingUpdate", "partition"), rolling.Partition)...)
		all = append(all, amount(at.Child("rollingUpdate", "maxUnavailable"), rolling.MaxUnavailable, true)...)
	}
	if name := spec.ServiceName; name != "" {
		all = append(all, invalid(specPath.Child("serviceName"), name, validation.IsDNS1123Label(name))...)
	}
	if r := spec.PersistentVolumeClaimRetentionPolicy; r != nil {
		at := specPath.Child("persistentVolumeClaimRetentionPolicy")
		keep, drop := apps.RetainPersistentVolumeClaimRetentionPolicyType, apps.DeletePersistentVolumeClaimRetentionPolicyType
		all = append(all, oneOf(at.Child("whenDeleted"), r.WhenDeleted, keep, drop)...)
		all = append(all, oneOf(at.Child("whenScaled"), r.WhenScaled, keep, drop)...)
	}
	for i := range spec.VolumeClaimTemplates {
		all = append(all, claimSpec(specPath.Child("volumeClaimTemplates").Index(i).Child("spec"), &spec.VolumeClaimTemplates[i].Spec)...)
	}
	return all
}

// withClaims is the template as the controller makes pods from it: each claim
// template is a volume of its own name, in place of one of that name that the
// template lists itself.
func withClaims(s *apps.StatefulSetSpec) *v1.PodTemplateSpec {
	if len(s.VolumeClaimTemplates) == 0 {
		return &s.Template
	}
	whole := s.Template
	claimed := map[string]bool{}
	whole.Spec.Volumes = make([]v1.Volume, 0, len(s.VolumeClaimTemplates)+len(s.Template.Spec.Volumes))
	add := func(v v1.Volume) {
		if !claimed[v.Name] {
			whole.Spec.Volumes = append(whole.Spec.Volumes, v)
		}
	}
	for i := range s.VolumeClaimTemplates {
		name := s.VolumeClaimTemplates[i].Name
		// The claim is named after the pod, which is not known here.
		add(v1.Volume{Name: name,
			VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}})
		claimed[name] = true
	}
	for _, v := range s.Template.Spec.Volumes {
		add(v)
	}
	return &whole
}

func StatefulSetUpdate(changed, old *apps.StatefulSet) errs {
	all := StatefulSet(changed)
	rest := changed.Spec.DeepCopy()
	before := &old.Spec
	rest.Replicas, rest.Ordinals, rest.Template, rest.UpdateStrategy = before.Replicas, before.Ordinals, before.Template,
		before.UpdateStrategy
	rest.RevisionHistoryLimit, rest.MinReadySeconds = before.RevisionHistoryLimit, before.MinReadySeconds
	rest.PersistentVolumeClaimRetentionPolicy = before.PersistentVolumeClaimRetentionPolicy
	if !equality.Semantic.DeepEqual(rest, before) {
		all = append(all, field.Forbidden(specPath,
			"updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "+
				"'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"))
	}
	return all
}

func StatefulSetStatusUpdate(s, old *apps.StatefulSet) errs {
	st := &s.Status
	all := append(observed(st.ObservedGeneration), counters(nil, []part{{"replicas", st.Replicas}})...)
	all = append(all, counters(&st.Replicas, []part{{"readyReplicas", st.ReadyReplicas}, {"currentReplicas", st.CurrentReplicas},
		{"updatedReplicas", st.UpdatedReplicas}, {"availableReplicas", st.AvailableReplicas}})...)
	all = append(all, availableAreReady(st.AvailableReplicas, st.ReadyReplicas)...)
	return append(all, collisions(st.CollisionCount, old.Status.CollisionCount)...)
}

func PodDisruptionBudget(b *policy.PodDisruptionBudget) errs {
	s := &b.Spec
	var all errs
	if s.MinAvailable != nil && s.MaxUnavailable != nil {
		all = append(all, field.Invalid(specPath, *s, "minAvailable and maxUnavailable cannot be both set"))
	}
	all = append(all, amount(specPath.Child("minAvailable"), s.MinAvailable, true)...)
	all = append(all, amount(specPath.Child("maxUnavailable"), s.MaxUnavailable, true)...)
	all = append(all, selector(specPath.Child("selector"), s.Selector)...)
	return append(all, oneOfIfSet(specPath.Child("unhealthyPodEvictionPolicy"), s.UnhealthyPodEvictionPolicy, policy.IfHealthyBudget,
		policy.AlwaysAllow)...)
}

func PodDisruptionBudgetStatusUpdate(b, _ *policy.PodDisruptionBudget) errs {
	s := &b.Status
	all := metavalidation.ValidateConditions(s.Conditions, field.NewPath("status", "conditions"))
	return append(all, counters(nil, []part{{"disruptionsAllowed", s.DisruptionsAllowed}, {"currentHealthy", s.CurrentHealthy},
		{"desiredHealthy", s.DesiredHealthy}, {"expectedPods", s.ExpectedPods}})...)
}

func ControllerRevision(r *apps.ControllerRevision) errs {
	all := notNegative(field.NewPath("revision"), r.Revision)
	if r.Data.Raw == nil && r.Data.Object == nil {
		all = append(all, field.Required(field.NewPath("data"), "data is mandatory"))
	}
	return all
}

func ControllerRevisionUpdate(changed, old *apps.ControllerRevision) errs {
	return append(ControllerRevision(changed), immutable(field.NewPath("data"), changed.Data, old.Data)...)
}

func DeploymentUpdate(changed, old *apps.Deployment) errs {
	return append(Deployment(changed), immutable(specPath.Child("selector"), changed.Spec.Selector, old.Spec.Selector)...)
}

func ReplicaSetUpdate(changed, old *apps.ReplicaSet) errs {
	return append(ReplicaSet(changed), immutable(specPath.Child("selector"), changed.Spec.Selector, old.Spec.Selector)...)
}

func DaemonSetUpdate(changed, old *apps.DaemonSet) errs {
	return append(DaemonSet(changed), immutable(specPath.Child("selector"), changed.Spec.Selector, old.Spec.Selector)...)
}
