package certificates

import (
	certificates "k8s.io/api/certificates/v1"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

// CertificateSigningRequest needs more than storing: package certificates makes
// its storage.
var CertificateSigningRequest = registry.Kind[*certificates.CertificateSigningRequest]{
	GroupVersion: certificates.SchemeGroupVersion, Kind: "CertificateSigningRequest",
	Resource: "certificatesigningrequests", ShortNames: []string{"csr"},
	AllowUnconditionalUpdate: true,
	HasStatus:                true,
	ValidateName:             pathvalidation.ValidatePathSegmentName,
	Validate:                 validate.CertificateSigningRequest, ValidateUpdate: validate.CertificateSigningRequestUpdate,
	ValidateStatusUpdate: validate.CertificateSigningRequestStatusUpdate,
	ResetFields:          [][]string{{"spec", "uid"}, {"spec", "username"}, {"spec", "groups"}, {"spec", "extra"}},
	Table:                table.CertificateSigningRequest,
	SelectableFields: registry.Fields[*certificates.CertificateSigningRequest]{
		Keys: []string{"spec.signerName"},
		Values: func(o *certificates.CertificateSigningRequest, set fields.Set) {
			set["spec.signerName"] = o.Spec.SignerName
		},
	},
	CustomStorage: true,
}
