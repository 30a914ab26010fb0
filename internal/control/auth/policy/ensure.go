package policy

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// parallel is how many writes run at once: enough for the store to share one
// fsync among several.
const parallel = 16

// Ensure puts the default policy in place: one list per kind, then only what
// is missing. Objects annotated autoupdate=false are left alone; others get
// missing rules, subjects, labels and annotations back, and keep what was
// added to them. It can run any number of times, also at once.
//
// The client should not limit its own rate.
func Ensure(ctx context.Context, client kubernetes.Interface) error {
	want, err := Default()
	if err != nil {
		return err
	}
	rbac := client.RbacV1()
	// The four kinds share no type, so each brings its own list and writer.
	kinds, kindsCtx := errgroup.WithContext(ctx)
	kinds.Go(func() error {
		list, err := rbac.ClusterRoles().List(kindsCtx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("listing ClusterRoles: %w", err)
		}
		return ensureAll(kindsCtx, client, pointers(list.Items), want.ClusterRoles,
			func(string) writer[*rbacv1.ClusterRole] { return rbac.ClusterRoles() })
	})
	kinds.Go(func() error {
		list, err := rbac.ClusterRoleBindings().List(kindsCtx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("listing ClusterRoleBindings: %w", err)
		}
		return ensureAll(kindsCtx, client, pointers(list.Items), want.ClusterRoleBindings,
			func(string) writer[*rbacv1.ClusterRoleBinding] { return rbac.ClusterRoleBindings() })
	})
	kinds.Go(func() error {
		list, err := rbac.Roles("").List(kindsCtx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("listing Roles: %w", err)
		}
		return ensureAll(kindsCtx, client, pointers(list.Items), want.Roles,
			func(namespace string) writer[*rbacv1.Role] { return rbac.Roles(namespace) })
	})
	kinds.Go(func() error {
		list, err := rbac.RoleBindings("").List(kindsCtx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("listing RoleBindings: %w", err)
		}
		return ensureAll(kindsCtx, client, pointers(list.Items), want.RoleBindings,
			func(namespace string) writer[*rbacv1.RoleBinding] { return rbac.RoleBindings(namespace) })
	})
	return kinds.Wait()
}

// writer is the part of a typed client that Ensure uses.
type writer[T any] interface {
	Create(ctx context.Context, obj T, opts metav1.CreateOptions) (T, error)
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error)
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}

type key struct{ namespace, name string }

func ensureAll[T any](ctx context.Context, client kubernetes.Interface, have, want []*T, in func(namespace string) writer[*T]) error {
	there := make(map[key]*T, len(have))
	for _, o := range have {
		meta := shapeOf(o).meta
		there[key{meta.Namespace, meta.Name}] = o
	}
	work, ctx := errgroup.WithContext(ctx)
	work.SetLimit(parallel)
	for _, w := range want {
		meta := shapeOf(w).meta
		h := there[key{meta.Namespace, meta.Name}]
		work.Go(func() error {
			if err := ensureOne(ctx, client, h, w, in(meta.Namespace)); err != nil {
				return fmt.Errorf("ensuring default %T %q: %w", *w, meta.Name, err)
			}
			return nil
		})
	}
	return work.Wait()
}

// ensureOne brings one object to its default. Another writer may be at it at
// the same moment (a second server starting): then it looks again.
func ensureOne[T any](ctx context.Context, client kubernetes.Interface, have, want *T, to writer[*T]) error {
	name := shapeOf(want).meta.Name
	for {
		err := takeStep(ctx, client, have, want, to)
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		current, getErr := to.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(getErr) && apierrors.IsNotFound(err) && have == nil:
			// Neither the object nor, it seems, a place to put it.
			return err
		case apierrors.IsNotFound(getErr):
			have = nil
		case getErr != nil:
			return getErr
		default:
			have = current
		}
	}
}

func takeStep[T any](ctx context.Context, client kubernetes.Interface, have, want *T, to writer[*T]) error {
	var compared any
	if have != nil {
		compared = have
	}
	what, body, err := plan(compared, want)
	if err != nil {
		return err
	}
	meta := shapeOf(want).meta
	switch what {
	case patch:
		_, err = to.Patch(ctx, meta.Name, types.MergePatchType, body, metav1.PatchOptions{})
		return err
	case replace:
		uid := shapeOf(have).meta.UID
		err = to.Delete(ctx, meta.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	case leave:
		return nil
	}
	_, err = to.Create(ctx, want, metav1.CreateOptions{})
	if apierrors.IsNotFound(err) && meta.Namespace != "" {
		// The namespaces of the defaults are themselves made at first start.
		space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: meta.Namespace}}
		if _, err := client.CoreV1().Namespaces().Create(ctx, space, metav1.CreateOptions{}); err != nil &&
			!apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating namespace %q: %w", meta.Namespace, err)
		}
		_, err = to.Create(ctx, want, metav1.CreateOptions{})
	}
	return err
}
