package defaults

import (
	certificates "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// podCertificateSeconds is the longest life of a pod's certificate unless the
// request says otherwise.
const podCertificateSeconds int32 = 24 * 60 * 60

func addCertificates(s *runtime.Scheme) {
	kind(s, podCertificateRequest, func(l *certificates.PodCertificateRequestList) []certificates.PodCertificateRequest { return l.Items })
}

func podCertificateRequest(r *certificates.PodCertificateRequest) {
	fill(&r.Spec.MaxExpirationSeconds, podCertificateSeconds)
}
