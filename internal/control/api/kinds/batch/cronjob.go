package batch

import (
	batch "k8s.io/api/batch/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var cronJob = registry.Kind[*batch.CronJob]{
	GroupVersion: batch.SchemeGroupVersion, Kind: "CronJob",
	Resource: "cronjobs", ShortNames: []string{"cj"}, Categories: []string{"all"},
	NamespaceScoped: true, AllowUnconditionalUpdate: true,
	HasStatus:  true,
	Generation: registry.OnSpec,
	Default:    defaults.CronJob,
	Validate:   validate.CronJob, ValidateUpdate: validate.CronJobUpdate,
	Table: table.CronJob,
}
