package storage

import (
	storage "k8s.io/api/storage/v1"

	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var csiStorageCapacity = registry.Kind[*storage.CSIStorageCapacity]{
	GroupVersion: storage.SchemeGroupVersion, Kind: "CSIStorageCapacity",
	Resource:        "csistoragecapacities",
	NamespaceScoped: true, AllowUnconditionalUpdate: true,
	Validate: validate.CSIStorageCapacity, ValidateUpdate: validate.CSIStorageCapacityUpdate,
	NoWatchCache: true,
}
