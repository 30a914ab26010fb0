package core

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
)

var serviceAccount = registry.Kind[*v1.ServiceAccount]{
	GroupVersion: v1.SchemeGroupVersion, Kind: "ServiceAccount",
	Resource: "serviceaccounts", ShortNames: []string{"sa"},
	NamespaceScoped: true, ReturnDeletedObject: true,
	Table: table.ServiceAccount,
}
