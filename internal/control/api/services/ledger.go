package services

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
)

// entry is one item of a ledger.
type entry struct {
	Owner   owner
	Created time.Time
	UID     types.UID
}

// managedBy marks the IPAddress objects that services own; the value is the one
// every Kubernetes cluster uses.
const managedBy = "ipallocator.k8s.io"

// AddressStore is the storage of IPAddress objects.
type AddressStore interface {
	rest.Getter
	rest.Lister
	rest.Creater
	rest.GracefulDeleter
}

// addressBook keeps cluster IPs as IPAddress objects.
type addressBook struct{ store AddressStore }

// inside turns the context of a request for a service into one for the
// addresses behind it: cluster scoped, and without the request info that would
// name services in errors.
func inside(ctx context.Context) context.Context {
	return genericapirequest.WithRequestInfo(genericapirequest.WithNamespace(ctx, metav1.NamespaceNone),
		&genericapirequest.RequestInfo{APIGroup: networkingv1.GroupName, APIVersion: "v1", Resource: "ipaddresses"})
}

func (b addressBook) Claim(ctx context.Context, ip netip.Addr, who owner, dryRun bool) error {
	ctx = inside(ctx)
	if dryRun {
		_, err := b.store.Get(ctx, ip.String(), &metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return fmt.Errorf("reading address %s: %w", ip, err)
		}
		return errTaken
	}
	obj := &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name: ip.String(),
			Labels: map[string]string{
				networkingv1.LabelIPAddressFamily: string(familyOf(ip)),
				networkingv1.LabelManagedBy:       managedBy,
			},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: who.Namespace, Name: who.Name,
		}},
	}
	_, err := b.store.Create(ctx, obj, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return errTaken
	case err != nil:
		return fmt.Errorf("recording address %s: %w", ip, err)
	}
	return nil
}

func (b addressBook) Release(ctx context.Context, ip netip.Addr, who owner) error {
	ctx = inside(ctx)
	obj, err := b.store.Get(ctx, ip.String(), &metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	address := obj.(*networkingv1.IPAddress)
	if ownerOf(address) != who {
		return nil
	}
	_, _, err = b.store.Delete(ctx, address.Name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &address.UID},
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (b addressBook) Taken(ctx context.Context) (map[netip.Addr]entry, error) {
	obj, err := b.store.List(inside(ctx), &metainternalversion.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	list, ok := obj.(*networkingv1.IPAddressList)
	if !ok {
		return nil, fmt.Errorf("listing addresses: got a %T", obj)
	}
	out := make(map[netip.Addr]entry, len(list.Items))
	for i := range list.Items {
		item := &list.Items[i]
		ip, err := netip.ParseAddr(item.Name)
		if err != nil {
			continue // not an address we could ever hand out
		}
		e := entry{Owner: ownerOf(item), Created: item.CreationTimestamp.Time, UID: item.UID}
		if item.Labels[networkingv1.LabelManagedBy] != managedBy {
			e.Owner = owner{} // another party's; never ours to repair
		}
		out[ip] = e
	}
	return out, nil
}

// ownerOf is the service an address belongs to, or the zero owner if its parent
// is no service.
func ownerOf(a *networkingv1.IPAddress) owner {
	p := a.Spec.ParentRef
	if p == nil || p.Group != "" || p.Resource != "services" {
		return owner{}
	}
	return owner{p.Namespace, p.Name}
}

// PortRecords is where node ports lie in the store. It is no API resource: one
// small ConfigMap-shaped record per port, named by the port and labelled with
// its owner.
var PortRecords = schema.GroupResource{Resource: "servicenodeports"}

const (
	portOwnerNamespace = "service-namespace"
	portOwnerName      = "service-name"
)

// portBook keeps node ports straight in the store.
type portBook struct {
	storage storage.Interface
	prefix  string
	now     func() time.Time
}

func newPortBook(opts generic.RESTOptionsGetter, now func() time.Time) (*portBook, factory.DestroyFunc, error) {
	o, err := opts.GetRESTOptions(PortRecords, &v1.ConfigMap{})
	if err != nil {
		return nil, nil, fmt.Errorf("opening the record of node ports: %w", err)
	}
	b := &portBook{prefix: "/" + trimSlashes(o.ResourcePrefix), now: now}
	keyOf := func(obj runtime.Object) (string, error) {
		m, err := meta.Accessor(obj)
		if err != nil {
			return "", err
		}
		return b.prefix + "/" + m.GetName(), nil
	}
	var destroy factory.DestroyFunc
	b.storage, destroy, err = o.Decorator(o.StorageConfig, b.prefix, keyOf,
		func() runtime.Object { return &v1.ConfigMap{} }, func() runtime.Object { return &v1.ConfigMapList{} },
		storage.DefaultClusterScopedAttr, nil, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("opening the record of node ports: %w", err)
	}
	return b, destroy, nil
}

func trimSlashes(s string) string {
	for len(s) > 0 && s[0] == '/' {
		s = s[1:]
	}
	return s
}

func (b *portBook) key(port uint16) string { return b.prefix + "/" + strconv.Itoa(int(port)) }

func (b *portBook) Claim(ctx context.Context, port uint16, who owner, dryRun bool) error {
	if dryRun {
		err := b.storage.Get(ctx, b.key(port), storage.GetOptions{}, &v1.ConfigMap{})
		switch {
		case storage.IsNotFound(err):
			return nil
		case err != nil:
			return fmt.Errorf("reading the record of node port %d: %w", port, err)
		}
		return errTaken
	}
	record := &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name: strconv.Itoa(int(port)), UID: uuid.NewUUID(), CreationTimestamp: metav1.NewTime(b.now()),
		},
		Data: map[string]string{portOwnerNamespace: who.Namespace, portOwnerName: who.Name},
	}
	err := b.storage.Create(ctx, b.key(port), record, &v1.ConfigMap{}, 0)
	switch {
	case storage.IsExist(err):
		return errTaken
	case err != nil:
		return fmt.Errorf("recording node port %d: %w", port, err)
	}
	return nil
}

func (b *portBook) Release(ctx context.Context, port uint16, who owner) error {
	record := &v1.ConfigMap{}
	err := b.storage.Get(ctx, b.key(port), storage.GetOptions{}, record)
	if storage.IsNotFound(err) || err == nil && portOwner(record) != who {
		return nil
	}
	if err != nil {
		return err
	}
	err = b.storage.Delete(ctx, b.key(port), &v1.ConfigMap{}, &storage.Preconditions{UID: &record.UID},
		storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
	if storage.IsNotFound(err) {
		return nil
	}
	return err
}

func (b *portBook) Taken(ctx context.Context) (map[uint16]entry, error) {
	list := &v1.ConfigMapList{}
	err := b.storage.GetList(ctx, b.prefix+"/", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list)
	if err != nil {
		return nil, fmt.Errorf("listing node ports: %w", err)
	}
	out := make(map[uint16]entry, len(list.Items))
	for i := range list.Items {
		item := &list.Items[i]
		port, err := strconv.ParseUint(item.Name, 10, 16)
		if err != nil {
			continue
		}
		out[uint16(port)] = entry{Owner: portOwner(item), Created: item.CreationTimestamp.Time, UID: item.UID}
	}
	return out, nil
}

func portOwner(record *v1.ConfigMap) owner {
	return owner{record.Data[portOwnerNamespace], record.Data[portOwnerName]}
}
