package certificates

import (
	"time"

	certificates "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var podCertificateRequest = registry.Kind[*certificates.PodCertificateRequest]{
	GroupVersion: certificates.SchemeGroupVersion, Kind: "PodCertificateRequest",
	Resource:        "podcertificaterequests",
	NamespaceScoped: true,
	HasStatus:       true,
	Default:         defaults.PodCertificateRequest,
	Validate:        validate.PodCertificateRequest, ValidateUpdate: validate.PodCertificateRequestUpdate,
	ValidateStatusUpdate: func(obj, old *certificates.PodCertificateRequest) field.ErrorList {
		return append(validate.PodCertificateRequestStatusUpdate(obj, old), validate.PodCertificateFresh(obj, old, time.Now())...)
	},
	Table: table.PodCertificateRequest,
	SelectableFields: registry.Fields[*certificates.PodCertificateRequest]{
		Keys: []string{"spec.signerName", "spec.podName", "spec.nodeName"},
		Values: func(o *certificates.PodCertificateRequest, set fields.Set) {
			set["spec.signerName"] = o.Spec.SignerName
			set["spec.podName"] = o.Spec.PodName
			set["spec.nodeName"] = string(o.Spec.NodeName)
		},
	},
	NoWatchCache: true,
}
