package core

import (
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

// Pod needs more than storing: package pods makes its storage.
var Pod = registry.Kind[*v1.Pod]{
	GroupVersion: v1.SchemeGroupVersion, Kind: "Pod",
	Resource: "pods", ShortNames: []string{"po"}, Categories: []string{"all"},
	NamespaceScoped: true, AllowUnconditionalUpdate: true, ReturnDeletedObject: true,
	Default:  defaults.Pod,
	Validate: validate.Pod, ValidateUpdate: validate.PodUpdate, ValidateStatusUpdate: validate.PodStatusUpdate,
	ResetFields: [][]string{{"status"}},
	Table:       table.Pod,
	SelectableFields: registry.Fields[*v1.Pod]{
		Keys: []string{"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
			"spec.hostNetwork", "status.phase", "status.podIP", "status.podIPs", "status.nominatedNodeName"},
		Aliases: map[string]string{"spec.host": "spec.nodeName"},
		Values: func(o *v1.Pod, set fields.Set) {
			set["spec.nodeName"] = o.Spec.NodeName
			set["spec.restartPolicy"] = string(o.Spec.RestartPolicy)
			set["spec.schedulerName"] = o.Spec.SchedulerName
			set["spec.serviceAccountName"] = o.Spec.ServiceAccountName
			set["spec.hostNetwork"] = strconv.FormatBool(o.Spec.HostNetwork)
			set["status.phase"] = string(o.Status.Phase)
			set["status.podIP"] = podIP(o)
			set["status.nominatedNodeName"] = o.Status.NominatedNodeName
		},
	},
	CustomStorage: true,
}

// podIP is the first of the pod's addresses, whichever field the writer used.
func podIP(p *v1.Pod) string {
	if len(p.Status.PodIPs) > 0 {
		return p.Status.PodIPs[0].IP
	}
	return p.Status.PodIP
}
