package storage

import (
	storage "k8s.io/api/storage/v1"

	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var volumeAttachment = registry.Kind[*storage.VolumeAttachment]{
	GroupVersion: storage.SchemeGroupVersion, Kind: "VolumeAttachment",
	Resource:            "volumeattachments",
	ReturnDeletedObject: true,
	HasStatus:           true, StatusResets: registry.Metadata,
	Validate: validate.VolumeAttachment, ValidateUpdate: validate.VolumeAttachmentUpdate,
	ValidateStatusUpdate: validate.VolumeAttachmentStatusUpdate,
	Table:                table.VolumeAttachment,
}
