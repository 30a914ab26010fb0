package validate

import (
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var coreKinds = []row{
	kind[v1.Pod, *v1.Pod]{scope: namespaced, create: podCreate, update: podUpdate, status: podStatus},
	kind[v1.PodTemplate, *v1.PodTemplate]{scope: namespaced, create: podTemplateGood, update: again(podTemplateGood)},
	kind[v1.Service, *v1.Service]{scope: namespaced, name: apivalidation.NameIsDNSLabel, create: serviceGood, update: serviceUpdate, status: serviceStatus},
	kind[v1.Endpoints, *v1.Endpoints]{scope: namespaced, create: endpointsGood, update: again(endpointsGood)},
	kind[v1.Node, *v1.Node]{scope: cluster, create: nodeGood, update: nodeUpdate, status: nodeStatus},
	kind[v1.Namespace, *v1.Namespace]{scope: cluster, name: apivalidation.NameIsDNSLabel, create: namespaceGood, update: again(namespaceGood), status: namespaceStatus},
	kind[v1.Secret, *v1.Secret]{scope: namespaced, create: secretGood, update: secretUpdate},
	kind[v1.ConfigMap, *v1.ConfigMap]{scope: namespaced, create: configMapGood, update: configMapUpdate},
	kind[v1.ServiceAccount, *v1.ServiceAccount]{scope: namespaced},
	kind[v1.Event, *v1.Event]{scope: namespaced, name: pathvalidation.ValidatePathSegmentName, create: eventGood, update: again(eventGood)},
	kind[v1.ReplicationController, *v1.ReplicationController]{scope: namespaced, create: controllerGood, update: again(controllerGood), status: controllerStatus},
	kind[v1.ResourceQuota, *v1.ResourceQuota]{scope: namespaced, create: quotaGood, update: quotaUpdate, status: quotaStatus},
	kind[v1.LimitRange, *v1.LimitRange]{scope: namespaced, create: limitRangeGood, update: again(limitRangeGood)},
}

func podTemplateGood(t *v1.PodTemplate) errs {
	return podTemplate(field.NewPath("template"), &t.Template)
}

var workloadKinds = []row{
	kind[apps.Deployment, *apps.Deployment]{scope: namespaced, create: deploymentGood, status: deploymentStatus, update: func(changed, old *apps.Deployment) errs {
		return append(deploymentGood(changed), immutable(specPath.Child("selector"), changed.Spec.Selector, old.Spec.Selector)...)
	}},
	kind[apps.ReplicaSet, *apps.ReplicaSet]{scope: namespaced, create: replicaSetGood, status: replicaSetStatus, update: func(changed, old *apps.ReplicaSet) errs {
		return append(replicaSetGood(changed), immutable(specPath.Child("selector"), changed.Spec.Selector, old.Spec.Selector)...)
	}},
	kind[apps.DaemonSet, *apps.DaemonSet]{scope: namespaced, create: daemonSetGood, status: daemonSetStatus, update: func(changed, old *apps.DaemonSet) errs {
		return append(daemonSetGood(changed), immutable(specPath.Child("selector"), changed.Spec.Selector, old.Spec.Selector)...)
	}},
	kind[apps.StatefulSet, *apps.StatefulSet]{scope: namespaced, name: apivalidation.NameIsDNSLabel, create: statefulSetGood, update: statefulSetUpdate, status: statefulSetStatus},
	kind[apps.ControllerRevision, *apps.ControllerRevision]{scope: namespaced, create: revisionGood, update: revisionUpdate},
	kind[batch.Job, *batch.Job]{scope: namespaced, create: jobGood, update: jobUpdate, status: jobStatus},
	kind[batch.CronJob, *batch.CronJob]{scope: namespaced, create: cronJobCreate, update: again(cronJobGood)},
	kind[policy.PodDisruptionBudget, *policy.PodDisruptionBudget]{scope: namespaced, name: pathvalidation.ValidatePathSegmentName, create: budgetGood, update: again(budgetGood), status: budgetStatus},
}
