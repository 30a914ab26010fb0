package certificates

import (
	certificates "k8s.io/api/certificates/v1"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var clusterTrustBundle = registry.Kind[*certificates.ClusterTrustBundle]{
	GroupVersion: certificates.SchemeGroupVersion, Kind: "ClusterTrustBundle",
	Resource:     "clustertrustbundles",
	ValidateName: pathvalidation.ValidatePathSegmentName,
	Validate:     validate.ClusterTrustBundle, ValidateUpdate: validate.ClusterTrustBundleUpdate,
	SelectableFields: registry.Fields[*certificates.ClusterTrustBundle]{
		Keys: []string{"spec.signerName"},
		Values: func(o *certificates.ClusterTrustBundle, set fields.Set) {
			set["spec.signerName"] = o.Spec.SignerName
		},
	},
	NoWatchCache: true,
}
