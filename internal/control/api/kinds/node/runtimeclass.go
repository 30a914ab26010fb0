package node

import (
	node "k8s.io/api/node/v1"

	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var runtimeClass = registry.Kind[*node.RuntimeClass]{
	GroupVersion: node.SchemeGroupVersion, Kind: "RuntimeClass",
	Resource: "runtimeclasses",
	Validate: validate.RuntimeClass, ValidateUpdate: validate.RuntimeClassUpdate,
	Table: table.RuntimeClass,
}
