// Package rootca publishes the cluster's CA certificate in every namespace, as
// the config map pods mount next to their token, and the one that signs what
// agents serve with in kube-system, for those who scrape agents.
package rootca

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
)

// Name and Key are where pods look for the certificate.
const (
	Name = "kube-root-ca.crt"
	Key  = "ca.crt"
)

// ServingName is the config map in kube-system with the CA of agents' serving
// certificates. It is no name of upstream's, where each cluster has its own way.
const ServingName = "kubelet-serving-ca.crt"

const servingDescription = "Contains the CA bundle that verifies the serving certificates of the nodes' agents (kubelets), port 10250."

const description = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the " +
	"internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters."

// want returns the data a namespace's config map should have; ok is false when
// it should be left alone.
func want(ns *v1.Namespace, have *v1.ConfigMap, ca []byte) (data map[string]string, ok bool) {
	if ns.DeletionTimestamp != nil || ns.Status.Phase == v1.NamespaceTerminating {
		return nil, false
	}
	if have != nil && len(have.Data) == 1 && have.Data[Key] == string(ca) && len(have.BinaryData) == 0 {
		return nil, false
	}
	return map[string]string{Key: string(ca)}, true
}

// Run publishes the PEM-encoded ca, and serving unless it is empty, until the
// context ends.
func Run(ctx context.Context, e controller.Env, ca, serving []byte) error {
	if len(ca) == 0 {
		return fmt.Errorf("%s: no CA certificate given", e.Name)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return publish(ctx, e, bundle{name: Name, text: ca, description: description}) })
	if len(serving) > 0 {
		group.Go(func() error {
			return publish(ctx, e, bundle{name: ServingName, only: metav1.NamespaceSystem, text: serving, description: servingDescription})
		})
	}
	return group.Wait()
}

// bundle is one config map to keep, in every namespace or in one only.
type bundle struct {
	name, only, description string
	text                    []byte
}

func publish(ctx context.Context, e controller.Env, p bundle) error {
	// Only config maps of this one name are cached.
	own := informers.NewSharedInformerFactoryWithOptions(e.Reader, 0, informers.WithNamespace(p.only),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = "metadata.name=" + p.name
		}))
	defer own.Shutdown()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	q := controller.NewQueue()
	namespaces, maps := e.Informers.Core().V1().Namespaces(), own.Core().V1().ConfigMaps()
	a, err1 := controller.On(ctx, namespaces.Informer(), func(_, ns *v1.Namespace, _ bool) {
		if p.only == "" || ns.Name == p.only {
			q.Add(ns.Name)
		}
	})
	b, err2 := controller.On(ctx, maps.Informer(), func(_, m *v1.ConfigMap, _ bool) {
		if m.Name == p.name {
			q.Add(m.Namespace)
		}
	})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	own.StartWithContext(ctx)
	if err := e.Synced(ctx, a, b); err != nil {
		return nil
	}
	return e.Run(ctx, q, 4, func(ctx context.Context, key string) (time.Duration, error) {
		ns, err := namespaces.Lister().Get(key)
		if apierrors.IsNotFound(err) {
			return 0, nil
		}
		have, getErr := maps.Lister().ConfigMaps(key).Get(p.name)
		if apierrors.IsNotFound(getErr) {
			have, getErr = nil, nil
		}
		if err := errors.Join(err, getErr); err != nil {
			return 0, err
		}
		data, ok := want(ns, have, p.text)
		if !ok {
			return 0, nil
		}
		return 0, p.write(ctx, e, key, have, data)
	})
}

func (p bundle) write(ctx context.Context, e controller.Env, ns string, have *v1.ConfigMap, data map[string]string) error {
	api := e.Client.CoreV1().ConfigMaps(ns)
	var err error
	if have == nil {
		_, err = api.Create(ctx, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: p.name,
			Annotations: map[string]string{"kubernetes.io/description": p.description}}, Data: data}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause) || apierrors.IsNotFound(err) {
			return nil
		}
	} else {
		_, err = kube.Patch(ctx, api, have, kube.Unchanged, kube.Change{Fields: map[string]any{"data": kube.Instead(have.Data, data),
			"binaryData": nil}})
	}
	if err != nil {
		return fmt.Errorf("publishing config map %s/%s: %w", ns, p.name, err)
	}
	return nil
}
