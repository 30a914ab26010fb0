package admit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/control/auth/nodeauthz"
)

// Restriction keeps a node to what is its own: its Node object, the pods on
// it, its lease. The Node authorizer says which kinds a node may write; this
// plugin looks at the objects.
const NodeRestriction = "NodeRestriction"

type restriction struct {
	*admission.Handler
	client     kubernetes.Interface
	pods       corelisters.PodLister
	nodes      corelisters.NodeLister
	accounts   corelisters.ServiceAccountLister
	claims     corelisters.PersistentVolumeClaimLister
	volumes    corelisters.PersistentVolumeLister
	drivers    storagelisters.CSIDriverLister
	authorizer authorizer.UnconditionalAuthorizer
}

func newNodeRestriction(io.Reader) (admission.Interface, error) {
	return &restriction{Handler: admission.NewHandler(admission.Create, admission.Update, admission.Delete)}, nil
}

func (r *restriction) SetExternalKubeClientSet(client kubernetes.Interface) { r.client = client }

func (r *restriction) SetUnconditionalAuthorizer(a authorizer.UnconditionalAuthorizer) {
	r.authorizer = a
}

func (r *restriction) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	core, storage := f.Core().V1(), f.Storage().V1()
	r.pods, r.nodes = core.Pods().Lister(), core.Nodes().Lister()
	r.accounts = core.ServiceAccounts().Lister()
	r.claims, r.volumes = core.PersistentVolumeClaims().Lister(), core.PersistentVolumes().Lister()
	r.drivers = storage.CSIDrivers().Lister()
	r.SetReadyFunc(allSynced(core.Pods().Informer(), core.Nodes().Informer(), core.ServiceAccounts().Informer(),
		core.PersistentVolumeClaims().Informer(),
		core.PersistentVolumes().Informer(), storage.CSIDrivers().Informer()))
}

func (r *restriction) ValidateInitialization() error {
	if r.pods == nil || r.client == nil || r.authorizer == nil {
		return errors.New(NodeRestriction + " needs a client, an informer factory and an authorizer")
	}
	return nil
}

// Admit judges writes by nodes; it changes nothing. It runs among the
// mutating plugins to see token requests before their defaults are filled in.
func (r *restriction) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	node, isNode := nodeauthz.NodeIdentity(a.GetUserInfo())
	if !isNode {
		return nil
	}
	if node == "" {
		return admission.NewForbidden(a, fmt.Errorf("could not determine node from user %q", a.GetUserInfo().GetName()))
	}
	if !r.WaitForReady() {
		return admission.NewForbidden(a, errors.New("not yet ready to handle request"))
	}
	if err := r.check(ctx, node, a); err != nil {
		return admission.NewForbidden(a, err)
	}
	return nil
}

// check applies the rule for the kind of object that the node writes.
func (r *restriction) check(ctx context.Context, node string, a admission.Attributes) error {
	switch a.GetResource().GroupResource() {
	case podsResource:
		return r.judgePod(ctx, node, a)
	case nodesResource:
		return judgeNode(node, a)
	case claimsResource:
		return judgeClaim(node, a)
	case schema.GroupResource{Resource: "serviceaccounts"}:
		return r.judgeToken(ctx, node, a)
	case schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}:
		return judgeLease(node, a)
	case schema.GroupResource{Group: "storage.k8s.io", Resource: "csinodes"}:
		return judgeCSINode(node, a)
	case schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceslices"}:
		return judgeSlice(node, a)
	case certificateResource:
		return judgeCertificate(node, a)
	case podCertificates:
		return r.judgePodCertificate(ctx, node, a)
	}
	return nil
}

func wrongObject(a admission.Attributes) error {
	return fmt.Errorf("unexpected type %T", a.GetObject())
}

func judgeLease(node string, a admission.Attributes) error {
	if a.GetNamespace() == announceNamespace {
		return judgeAnnouncing(node, a)
	}
	if a.GetNamespace() != corev1.NamespaceNodeLease {
		return fmt.Errorf("can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	}
	name := a.GetName()
	if a.GetOperation() == admission.Create {
		lease, ok := a.GetObject().(*coordinationv1.Lease)
		if !ok {
			return wrongObject(a)
		}
		// A generated name is not known before it is stored.
		name = lease.Name
	}
	if name != node {
		return errors.New("can only access node lease with the same name as the requesting node")
	}
	return nil
}

func judgeCSINode(node string, a admission.Attributes) error {
	name := a.GetName()
	if a.GetOperation() == admission.Create {
		csi, ok := a.GetObject().(*storagev1.CSINode)
		if !ok {
			return wrongObject(a)
		}
		name = csi.Name
	}
	if name != node {
		return errors.New("can only access CSINode with the same name as the requesting node")
	}
	return nil
}

// judgeSlice keeps a node to slices of its own devices: a slice is the node's
// before the write and after it, and stays with its driver and pool. Validation
// makes these fields immutable for all; here they are what keeps a node from
// offering devices for others.
func judgeSlice(node string, a admission.Attributes) error {
	var now, old *resourcev1.ResourceSlice
	for object, into := range map[runtime.Object]**resourcev1.ResourceSlice{a.GetObject(): &now, a.GetOldObject(): &old} {
		if object == nil {
			continue
		}
		slice, ok := object.(*resourcev1.ResourceSlice)
		if !ok {
			return fmt.Errorf("unexpected type %T", object)
		}
		if ptr.Deref(slice.Spec.NodeName, "") != node || ptr.Deref(slice.Spec.AllNodes, false) || slice.Spec.NodeSelector != nil {
			return fmt.Errorf("can only %s ResourceSlice with the same NodeName as the requesting node",
				strings.ToLower(string(a.GetOperation())))
		}
		*into = slice
	}
	if now == nil || old == nil {
		return nil
	}
	if now.Spec.Driver != old.Spec.Driver || now.Spec.Pool.Name != old.Spec.Pool.Name {
		return fmt.Errorf("node %q cannot move ResourceSlice %s to another driver or pool: spec.driver must stay %q and spec.pool.name "+
			"%q; create a new slice",
			node, old.Name, old.Spec.Driver, old.Spec.Pool.Name)
	}
	return nil
}

func judgeCertificate(node string, a admission.Attributes) error {
	if a.GetOperation() != admission.Create || a.GetSubresource() != "" {
		return nil
	}
	csr, ok := a.GetObject().(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return wrongObject(a)
	}
	if csr.Spec.SignerName != certificatesv1.KubeletServingSignerName &&
		csr.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return nil
	}
	request, err := parseRequest(csr.Spec.Request)
	if err != nil {
		return fmt.Errorf("unable to parse csr: %w", err)
	}
	if request.Subject.CommonName != nodeauthz.UserPrefix+node {
		return fmt.Errorf("can only create a node CSR with CN=%s", nodeauthz.UserPrefix+node)
	}
	return nil
}

// judgeClaim lets a node report the progress of a volume's expansion and
// nothing else.
func judgeClaim(node string, a admission.Attributes) error {
	if a.GetSubresource() != "status" {
		return fmt.Errorf("may only update PVC status")
	}
	if a.GetOperation() != admission.Update {
		return fmt.Errorf("unexpected operation %q", a.GetOperation())
	}
	old, ok := a.GetOldObject().(*corev1.PersistentVolumeClaim)
	now, alsoOk := a.GetObject().(*corev1.PersistentVolumeClaim)
	if !ok || !alsoOk {
		return wrongObject(a)
	}
	old, now = old.DeepCopy(), now.DeepCopy()
	for _, claim := range []*corev1.PersistentVolumeClaim{old, now} {
		claim.ResourceVersion, claim.ManagedFields = "", nil
		claim.Status.Capacity, claim.Status.Conditions = nil, nil
		claim.Status.AllocatedResources, claim.Status.AllocatedResourceStatuses = nil, nil
	}
	if !equality.Semantic.DeepEqual(old, now) {
		return fmt.Errorf("node %q is not allowed to update fields other than status.capacity, status.conditions, "+
			"status.allocatedResources and status.allocatedResourceStatuses", node)
	}
	return nil
}
