package storage

import (
	storage "k8s.io/api/storage/v1"

	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var csiNode = registry.Kind[*storage.CSINode]{
	GroupVersion: storage.SchemeGroupVersion, Kind: "CSINode",
	Resource:            "csinodes",
	ReturnDeletedObject: true,
	Validate:            validate.CSINode, ValidateUpdate: validate.CSINodeUpdate,
	Table: table.CSINode,
}
