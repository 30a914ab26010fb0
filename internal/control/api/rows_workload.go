package api

import (
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

func appsRows() []Row {
	rows := family(appsv1.SchemeGroupVersion,
		Row{Kind: "Deployment", Resource: "deployments", ShortNames: []string{"deploy"}, Categories: all,
			HasStatus: true, StatusKeeps: keepLabels, Generation: generationSpecAndAnnotations},
		Row{Kind: "ReplicaSet", Resource: "replicasets", ShortNames: []string{"rs"}, Categories: all,
			HasStatus: true, Generation: generationSpec},
		Row{Kind: "StatefulSet", Resource: "statefulsets", ShortNames: []string{"sts"}, Categories: all,
			HasStatus: true, Generation: generationSpec},
		Row{Kind: "DaemonSet", Resource: "daemonsets", ShortNames: []string{"ds"}, Categories: all,
			HasStatus: true, Generation: generationSpec},
		Row{Kind: "ControllerRevision", Resource: "controllerrevisions", NoCache: true},
	)
	rows = append(rows, family(autoscalingv2.SchemeGroupVersion,
		Row{Kind: "HorizontalPodAutoscaler", Resource: "horizontalpodautoscalers", NoCache: true, ShortNames: []string{"hpa"},
			Categories: all, HasStatus: true, OtherVersions: []schema.GroupVersion{autoscalingv1.SchemeGroupVersion}},
	)...)
	return append(rows, family(autoscalingv1.SchemeGroupVersion,
		Row{Kind: "HorizontalPodAutoscaler", Resource: "horizontalpodautoscalers", NoCache: true, ShortNames: []string{"hpa"},
			Categories: all, HasStatus: true, OtherVersions: []schema.GroupVersion{autoscalingv2.SchemeGroupVersion},
			StoredAs: schema.GroupResource{Group: autoscalingv2.GroupName, Resource: "horizontalpodautoscalers"}},
	)...)
}

func batchRows() []Row {
	return family(batchv1.SchemeGroupVersion,
		Row{Kind: "Job", Resource: "jobs", Categories: all, HasStatus: true, Generation: generationSpec,
			PrepareCreate: prepareJob, GarbageCollection: rest.OrphanDependents},
		Row{Kind: "CronJob", Resource: "cronjobs", ShortNames: []string{"cj"}, Categories: all,
			HasStatus: true, Generation: generationSpec},
	)
}
