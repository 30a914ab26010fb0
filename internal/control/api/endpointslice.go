package api

import (
	"context"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// prepareSlice drops what version 1 of the API has taken over from the beta and never writes.
func prepareSlice(_ context.Context, obj runtime.Object) {
	slice := obj.(*discoveryv1.EndpointSlice)
	for i := range slice.Endpoints {
		slice.Endpoints[i].DeprecatedTopology = nil
	}
}

func prepareSliceUpdate(ctx context.Context, obj, _ runtime.Object) { prepareSlice(ctx, obj) }
