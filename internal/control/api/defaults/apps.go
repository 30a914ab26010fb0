package defaults

import (
	apps "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// historyLimit is how many old revisions a workload keeps for rollback.
const historyLimit int32 = 10

func Deployment(d *apps.Deployment) {
	podTemplate(&d.Spec.Template)
	fill(&d.Spec.Replicas, 1)
	fill(&d.Spec.RevisionHistoryLimit, historyLimit)
	fill(&d.Spec.ProgressDeadlineSeconds, 600)
	strategy := &d.Spec.Strategy
	zero(&strategy.Type, apps.RollingUpdateDeploymentStrategyType)
	if strategy.Type == apps.RollingUpdateDeploymentStrategyType {
		fill(&strategy.RollingUpdate, apps.RollingUpdateDeployment{})
		fill(&strategy.RollingUpdate.MaxUnavailable, intstr.FromString("25%"))
		fill(&strategy.RollingUpdate.MaxSurge, intstr.FromString("25%"))
	}
}

func ReplicaSet(r *apps.ReplicaSet) {
	podTemplate(&r.Spec.Template)
	fill(&r.Spec.Replicas, 1)
}

func DaemonSet(d *apps.DaemonSet) {
	podTemplate(&d.Spec.Template)
	fill(&d.Spec.RevisionHistoryLimit, historyLimit)
	strategy := &d.Spec.UpdateStrategy
	zero(&strategy.Type, apps.RollingUpdateDaemonSetStrategyType)
	if strategy.Type == apps.RollingUpdateDaemonSetStrategyType {
		fill(&strategy.RollingUpdate, apps.RollingUpdateDaemonSet{})
		fill(&strategy.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
		fill(&strategy.RollingUpdate.MaxSurge, intstr.FromInt32(0))
	}
}

func StatefulSet(s *apps.StatefulSet) {
	podTemplate(&s.Spec.Template)
	fill(&s.Spec.Replicas, 1)
	fill(&s.Spec.RevisionHistoryLimit, historyLimit)
	zero(&s.Spec.PodManagementPolicy, apps.OrderedReadyPodManagement)
	strategy := &s.Spec.UpdateStrategy
	if strategy.Type == "" {
		strategy.Type = apps.RollingUpdateStatefulSetStrategyType
		fill(&strategy.RollingUpdate, apps.RollingUpdateStatefulSetStrategy{})
	}
	// Anyone who names the type alone gets no more than that.
	if strategy.Type == apps.RollingUpdateStatefulSetStrategyType && strategy.RollingUpdate != nil {
		fill(&strategy.RollingUpdate.Partition, 0)
	}
	fill(&s.Spec.PersistentVolumeClaimRetentionPolicy, apps.StatefulSetPersistentVolumeClaimRetentionPolicy{})
	retention := s.Spec.PersistentVolumeClaimRetentionPolicy
	zero(&retention.WhenDeleted, apps.RetainPersistentVolumeClaimRetentionPolicyType)
	zero(&retention.WhenScaled, apps.RetainPersistentVolumeClaimRetentionPolicyType)
	for i := range s.Spec.VolumeClaimTemplates {
		template := &s.Spec.VolumeClaimTemplates[i]
		// Clients see the kind of the templates although it is implied.
		template.APIVersion, template.Kind = "v1", "PersistentVolumeClaim"
		PersistentVolumeClaim(template)
	}
}
