package storage

import (
	"context"

	storage "k8s.io/api/storage/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var csiDriver = registry.Kind[*storage.CSIDriver]{
	GroupVersion: storage.SchemeGroupVersion, Kind: "CSIDriver",
	Resource:            "csidrivers",
	ReturnDeletedObject: true,
	Generation:          registry.OnSpec,
	// The generation counts changes from zero.
	PrepareForCreate: func(_ context.Context, d *storage.CSIDriver) { d.Generation = 0 },
	Default:          defaults.CSIDriver,
	Validate:         validate.CSIDriver, ValidateUpdate: validate.CSIDriverUpdate,
	Table: table.CSIDriver,
}
