// Package certificates describes the kinds of certificates.k8s.io, one file each.
package certificates

import "github.com/berth-dev/berth/internal/control/api/registry"

// Kinds are all kinds of the group.
var Kinds = []registry.Resource{
	&CertificateSigningRequest,
	&clusterTrustBundle,
	&podCertificateRequest,
}
