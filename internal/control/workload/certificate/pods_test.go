package certificate

import (
	"testing"
	"time"

	certv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A request is kept for a quarter of an hour, answered or not.
func TestPodRequestExpires(t *testing.T) {
	made := time.Unix(1_700_000_000, 0)
	r := &certv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(made)}}
	for _, status := range []certv1.PodCertificateRequestStatus{{},
		{Conditions: []metav1.Condition{{Type: "Denied", LastTransitionTime: metav1.NewTime(made.Add(time.Minute))}}}} {
		r.Status = status
		if got := podRequestExpires(r); !got.Equal(made.Add(15 * time.Minute)) {
			t.Errorf("%v expires %v after it was made", status, got.Sub(made))
		}
	}
}
