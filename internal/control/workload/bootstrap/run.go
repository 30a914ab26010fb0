// Package bootstrap deletes bootstrap tokens when they expire and signs the
// cluster-info config map with those that may sign, so that a host that
// joins can trust it knowing nothing but its token.
package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	api "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/jws"

	"github.com/berth-dev/berth/internal/control/workload/podcontrol"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
)

// tokens is an informer of bootstrap token secrets alone: no other secret is
// held in memory.
func tokens(e controller.Env) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(e.Client, 0, informers.WithNamespace(metav1.NamespaceSystem),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = "type=" + string(api.SecretTypeBootstrapToken) }))
}

// expires reads when a token expires; ok is false for one that never does. A
// time that cannot be read counts as expired, as no one would accept it.
func expires(s *v1.Secret) (at time.Time, ok bool) {
	raw := string(s.Data[api.BootstrapTokenExpirationKey])
	if raw == "" {
		return time.Time{}, false
	}
	at, err := time.Parse(time.RFC3339, raw)
	if err != nil {
		return time.Time{}, true
	}
	return at, true
}

// RunCleaner deletes expired tokens until the context ends.
func RunCleaner(ctx context.Context, e controller.Env) error {
	f := tokens(e)
	ctx, cancel := context.WithCancel(ctx)
	defer f.Shutdown()
	defer cancel()
	inf := f.Core().V1().Secrets()
	q := controller.NewQueue()
	seen, err := controller.On(ctx, inf.Informer(), func(_, s *v1.Secret, _ bool) { q.Add(s.Name) })
	if err != nil {
		return err
	}
	f.StartWithContext(ctx)
	if err := e.Synced(ctx, seen); err != nil {
		return nil
	}
	return e.Run(ctx, q, 1, func(ctx context.Context, name string) (time.Duration, error) {
		s, err := inf.Lister().Secrets(metav1.NamespaceSystem).Get(name)
		if err != nil {
			return 0, nil
		}
		at, ok := expires(s)
		if !ok {
			return 0, nil
		}
		if left := time.Until(at); left > 0 {
			return left, nil
		}
		e.Note("Secret", s, "deleted", journal.Fact{Name: "expired", Value: at.UTC().Format(time.RFC3339)})
		opts := kube.SameUID(s)
		opts.Preconditions.ResourceVersion = &s.ResourceVersion
		if err := e.Client.CoreV1().Secrets(s.Namespace).Delete(ctx, name, opts); err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("deleting an expired bootstrap token: %w", err)
		}
		return 0, nil
	})
}

// signatures computes what the cluster-info map should hold beside its
// kubeconfig: one detached signature per token that may sign. again is when
// the first of them expires, 0 for never.
func signatures(kubeconfig string, secrets []*v1.Secret, now time.Time) (data map[string]string, again time.Duration, err error) {
	data = map[string]string{}
	var errs []error
	for _, s := range secrets {
		id, secret := string(s.Data[api.BootstrapTokenIDKey]), string(s.Data[api.BootstrapTokenSecretKey])
		if s.Type != api.SecretTypeBootstrapToken || s.DeletionTimestamp != nil || secret == "" || s.Name != api.BootstrapTokenSecretPrefix+
			id ||
			string(s.Data[api.BootstrapTokenUsageSigningKey]) != "true" {
			continue
		}
		if at, ok := expires(s); ok {
			left := at.Sub(now)
			if left <= 0 {
				continue
			}
			if again == 0 || left < again {
				again = left
			}
		}
		sig, err := jws.ComputeDetachedSignature(kubeconfig, id, secret)
		if err != nil {
			errs = append(errs, fmt.Errorf("signing with token %s: %w", id, err))
			continue
		}
		data[api.JWSSignatureKeyPrefix+id] = sig
	}
	return data, again, errors.Join(errs...)
}

// RunSigner keeps the signatures of kube-public/cluster-info until the context
// ends.
func RunSigner(ctx context.Context, e controller.Env) error {
	f := tokens(e)
	maps1 := informers.NewSharedInformerFactoryWithOptions(e.Client, 0, informers.WithNamespace(metav1.NamespacePublic),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=" + api.ConfigMapClusterInfo }))
	ctx, cancel := context.WithCancel(ctx)
	defer f.Shutdown()
	defer maps1.Shutdown()
	defer cancel()
	secrets, infos := f.Core().V1().Secrets().Informer(), maps1.Core().V1().ConfigMaps()
	q := controller.NewQueue()
	a, err1 := controller.On(ctx, secrets, func(_, _ *v1.Secret, _ bool) { q.Add(api.ConfigMapClusterInfo) })
	b, err2 := controller.On(ctx, infos.Informer(), func(_, _ *v1.ConfigMap, _ bool) { q.Add(api.ConfigMapClusterInfo) })
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	f.StartWithContext(ctx)
	maps1.StartWithContext(ctx)
	if err := e.Synced(ctx, a, b); err != nil {
		return nil
	}
	return e.Run(ctx, q, 1, func(ctx context.Context, name string) (time.Duration, error) {
		m, err := infos.Lister().ConfigMaps(metav1.NamespacePublic).Get(name)
		if err != nil {
			return 0, nil // nothing to sign
		}
		kubeconfig, ok := m.Data[api.KubeConfigKey]
		if !ok {
			return 0, nil
		}
		want, again, err := signatures(kubeconfig, podcontrol.Indexed[*v1.Secret](secrets, cache.NamespaceIndex, metav1.NamespaceSystem),
			time.Now())
		if err != nil {
			return 0, err
		}
		have := map[string]string{}
		for k, v := range m.Data {
			if strings.HasPrefix(k, api.JWSSignatureKeyPrefix) {
				have[k] = v
			}
		}
		if maps.Equal(have, want) {
			return again, nil
		}
		_, err = kube.Patch(ctx, e.Client.CoreV1().ConfigMaps(metav1.NamespacePublic), m, kube.Unchanged,
			kube.Change{Fields: map[string]any{"data": kube.Instead(have, want)}})
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("signing %s: %w", controller.Key(m), err)
		}
		return again, nil
	})
}
