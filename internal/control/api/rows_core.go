package api

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

// eventTTL is how long an event is kept after its last write.
const eventTTL = time.Hour

func coreRows() []Row {
	rows := family(corev1.SchemeGroupVersion,
		Row{Kind: "ServiceAccount", Resource: "serviceaccounts", ShortNames: []string{"sa"},
			ReturnDeleted: true, NeedsResourceVersion: true},
		Row{Kind: "ConfigMap", Resource: "configmaps", ShortNames: []string{"cm"}},
		Row{Kind: "Secret", Resource: "secrets"},
		Row{Kind: "Endpoints", Resource: "endpoints", Singular: "endpoints", ShortNames: []string{"ep"},
			CreateByPut: true},
		Row{Kind: "Event", Resource: "events", ShortNames: []string{"ev"}, CreateByPut: true,
			TTL: eventTTL, NoCache: true, GarbageCollection: rest.Unsupported},
		Row{Kind: "ReplicationController", Resource: "replicationcontrollers", ShortNames: []string{"rc"}, Categories: all,
			HasStatus: true, Generation: generationSpec, GarbageCollection: rest.OrphanDependents},
		Row{Kind: "PodTemplate", Resource: "podtemplates", NoCache: true, ReturnDeleted: true, Generation: generationContent},
		Row{Kind: "LimitRange", Resource: "limitranges", NoCache: true, ShortNames: []string{"limits"}},
		Row{Kind: "ResourceQuota", Resource: "resourcequotas", NoCache: true, ShortNames: []string{"quota"},
			HasStatus: true, ReturnDeleted: true},
	)
	rows = append(rows, family(eventsv1.SchemeGroupVersion,
		Row{Kind: "Event", Resource: "events", ShortNames: []string{"ev"}, CreateByPut: true,
			TTL: eventTTL, NoCache: true, GarbageCollection: rest.Unsupported,
			StoredAs: schema.GroupResource{Resource: "events"}},
	)...)
	rows = append(rows, family(coordinationv1.SchemeGroupVersion,
		Row{Kind: "Lease", Resource: "leases", CreateByPut: true, NeedsResourceVersion: true,
			PrepareCreate: prepareHeartbeat, PrepareUpdate: prepareHeartbeatUpdate},
	)...)
	return append(rows, family(discoveryv1.SchemeGroupVersion,
		Row{Kind: "EndpointSlice", Resource: "endpointslices", Generation: generationAll,
			PrepareCreate: prepareSlice, PrepareUpdate: prepareSliceUpdate},
	)...)
}
