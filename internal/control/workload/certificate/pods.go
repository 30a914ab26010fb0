package certificate

import (
	"context"
	"fmt"
	"time"

	certv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
)

// keepPodRequest is how long a request for a pod's certificate is kept, whatever
// became of it: the node has read the answer long before.
const keepPodRequest = 15 * time.Minute

// podRequestExpires says when a request for a pod's certificate is of no more
// use.
func podRequestExpires(r *certv1.PodCertificateRequest) time.Time {
	return r.CreationTimestamp.Add(keepPodRequest)
}

// RunPodCleaner deletes requests for pods' certificates when they are old, until
// the context ends.
func RunPodCleaner(ctx context.Context, e controller.Env) error {
	inf := e.Informers.Certificates().V1().PodCertificateRequests()
	q := controller.NewQueue()
	seen, err := controller.On(ctx, inf.Informer(), func(_, r *certv1.PodCertificateRequest, _ bool) { q.Add(r.Namespace + "/" + r.Name) })
	if err != nil {
		return err
	}
	if err := e.Synced(ctx, seen); err != nil {
		return nil
	}
	return e.Run(ctx, q, 1, func(ctx context.Context, key string) (time.Duration, error) {
		namespace, name, err := cache.SplitMetaNamespaceKey(key)
		if err != nil {
			return 0, err
		}
		r, err := inf.Lister().PodCertificateRequests(namespace).Get(name)
		if err != nil {
			return 0, nil
		}
		if left := time.Until(podRequestExpires(r)); left > 0 {
			return left, nil
		}
		err = e.Client.CertificatesV1().PodCertificateRequests(namespace).Delete(ctx, name, kube.SameUID(r))
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("deleting request %s: %w", key, err)
		}
		return 0, nil
	})
}
