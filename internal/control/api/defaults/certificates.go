package defaults

import (
	certificates "k8s.io/api/certificates/v1"
)

// podCertificateSeconds is the longest life of a pod's certificate unless the
// request says otherwise.
const podCertificateSeconds int32 = 24 * 60 * 60

func PodCertificateRequest(r *certificates.PodCertificateRequest) {
	fill(&r.Spec.MaxExpirationSeconds, podCertificateSeconds)
}
