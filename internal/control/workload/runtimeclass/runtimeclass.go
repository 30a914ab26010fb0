// Package runtimeclass offers the runtimes that nodes have as RuntimeClasses.
package runtimeclass

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-dev/berth/internal/controller"
)

// usual is the handler that every node has; pods without a class have it.
const usual = "runc"

// markerPrefix and a handler's name is the config map in kube-system that says
// that the handler's class was made once: whatever a user did to it since is
// theirs.
const markerPrefix = "berth-runtime-class-"

// offered are the handlers of a node that get a class, in order.
func offered(n *v1.Node) (out []string) {
	for _, h := range n.Status.RuntimeHandlers {
		if h.Name != "" && h.Name != usual && len(validation.IsDNS1123Label(h.Name)) == 0 {
			out = append(out, h.Name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Run makes the classes until the context ends.
func Run(ctx context.Context, e controller.Env) error {
	q := controller.NewQueue()
	seen, err := controller.On(ctx, e.Informers.Core().V1().Nodes().Informer(), func(old, n *v1.Node, gone bool) {
		if gone {
			return
		}
		have := offered(n)
		if old != nil && slices.Equal(offered(old), have) {
			return
		}
		for _, h := range have {
			q.Add(h)
		}
	})
	if err != nil {
		return err
	}
	if err := e.Synced(ctx, seen); err != nil {
		return nil
	}
	return e.Run(ctx, q, 1, func(ctx context.Context, handler string) (time.Duration, error) { return 0, offer(ctx, e, handler) })
}

// offer makes a handler's class if this cluster never had one of ours for it.
func offer(ctx context.Context, e controller.Env, handler string) error {
	maps := e.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	_, err := maps.Get(ctx, markerPrefix+handler, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: handler}, Handler: handler}
	_, err = e.Client.NodeV1().RuntimeClasses().Create(ctx, class, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("making RuntimeClass %s: %w", handler, err)
	}
	// Last: a crash before makes the class again, which nobody can have changed.
	_, err = maps.Create(ctx, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: markerPrefix + handler, Annotations: map[string]string{
		"kubernetes.io/description": "The RuntimeClass " + handler +
			" was made when a node first had that runtime. It is not made again; " +
			"delete this config map to have it back."}}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
