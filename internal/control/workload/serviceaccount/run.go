// Package serviceaccount gives every namespace its "default" service account.
package serviceaccount

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
)

// name is the account pods use that name none.
const name = "default"

// missing says whether a namespace still needs its account: one that is being
// deleted gets nothing new.
func missing(ns *v1.Namespace, exists bool) bool {
	return !exists && ns.DeletionTimestamp == nil && ns.Status.Phase != v1.NamespaceTerminating
}

// Run keeps the accounts until the context ends.
func Run(ctx context.Context, e controller.Env) error {
	core := e.Informers.Core().V1()
	namespaces, accounts := core.Namespaces().Lister(), core.ServiceAccounts().Lister()
	q := controller.NewQueue()
	a, err1 := controller.On(ctx, core.Namespaces().Informer(), func(_, ns *v1.Namespace, _ bool) { q.Add(ns.Name) })
	b, err2 := controller.On(ctx, core.ServiceAccounts().Informer(), func(_, sa *v1.ServiceAccount, gone bool) {
		if gone && sa.Name == name {
			q.Add(sa.Namespace)
		}
	})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if err := e.Synced(ctx, a, b); err != nil {
		return nil
	}
	return e.Run(ctx, q, 4, func(ctx context.Context, key string) (time.Duration, error) {
		ns, err := namespaces.Get(key)
		if err != nil {
			return 0, kube.IgnoreNotFound(err)
		}
		_, err = accounts.ServiceAccounts(key).Get(name)
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, err
		}
		if !missing(ns, err == nil) {
			return 0, nil
		}
		_, err = e.Client.CoreV1().ServiceAccounts(key).Create(ctx, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{})
		if err != nil && !needsNoRetry(err) {
			return 0, fmt.Errorf("creating service account %s/%s: %w", key, name, err)
		}
		return 0, nil
	})
}

// needsNoRetry reports whether a refused creation leaves nothing to do: the
// account exists, or its namespace is deleted or being deleted.
func needsNoRetry(err error) bool {
	return apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause)
}
