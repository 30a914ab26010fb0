package storage

import (
	storage "k8s.io/api/storage/v1"

	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var volumeAttributesClass = registry.Kind[*storage.VolumeAttributesClass]{
	GroupVersion: storage.SchemeGroupVersion, Kind: "VolumeAttributesClass",
	Resource: "volumeattributesclasses", ShortNames: []string{"vac"},
	AllowUnconditionalUpdate: true, ReturnDeletedObject: true,
	Validate: validate.VolumeAttributesClass, ValidateUpdate: validate.VolumeAttributesClassUpdate,
	Table:        table.VolumeAttributesClass,
	NoWatchCache: true,
}
