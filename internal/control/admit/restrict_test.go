package admit

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"
)

var node1 = &user.DefaultInfo{Name: "system:node:n1", Groups: []string{"system:nodes"}}

func mirrorPod(change ...func(*corev1.Pod)) *corev1.Pod {
	pod := newPod(func(p *corev1.Pod) {
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "h"}
		p.Spec.NodeName = "n1"
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "u1", Controller: ptr.To(true)}}
	})
	for _, f := range change {
		f(pod)
	}
	return pod
}

func withVolume(v corev1.VolumeSource) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "v", VolumeSource: v})
	}
}

func owner(change func(*metav1.OwnerReference)) func(*corev1.Pod) {
	return func(p *corev1.Pod) { change(&p.OwnerReferences[0]) }
}

func bareNode(change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1"}}
	for _, f := range change {
		f(n)
	}
	return n
}

func label(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		n.Labels[key] = value
	}
}

func certificateRequest(t *testing.T, name, signer string, organizations ...string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: name, Organization: organizations}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{ObjectMeta: named("", "csr"), Spec: certificatesv1.CertificateSigningRequestSpec{
		SignerName: signer, Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
	}}
}

func tokenFor(kind, name, uid string, audiences ...string) *authenticationv1.TokenRequest {
	r := &authenticationv1.TokenRequest{ObjectMeta: named("ns", "sa"), Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
	if kind != "" {
		r.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: kind, APIVersion: "v1", Name: name, UID: types.UID(uid)}
	}
	return r
}

func restrictionRig(t *testing.T) *rig {
	mine := newPod(withVolume(
		corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "vault"}}}}}),
		withVolume(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "inline"}}),
		withVolume(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}))
	mine.Name, mine.UID, mine.Spec.NodeName = "mine", "m", "n1"
	api := newPod(withVolume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}}}}}))
	api.Name, api.UID, api.Spec.NodeName = "api", "a", "n1"
	theirs := newPod()
	theirs.Name, theirs.UID, theirs.Spec.NodeName = "theirs", "t", "n2"
	return newRig(t, newNodeRestriction, bareNode(), mine, api, theirs,
		&storagev1.CSIDriver{ObjectMeta: named("", "inline"),
			Spec: storagev1.CSIDriverSpec{TokenRequests: []storagev1.TokenRequest{{Audience: "inline-aud"}}}},
		&storagev1.CSIDriver{ObjectMeta: named("", "block"),
			Spec: storagev1.CSIDriverSpec{TokenRequests: []storagev1.TokenRequest{{Audience: "block-aud"}}}},
		&corev1.PersistentVolumeClaim{ObjectMeta: named("ns", "data"), Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}},
		&corev1.PersistentVolume{ObjectMeta: named("", "pv"),
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: "block"}}}},
		&rbacv1.ClusterRole{ObjectMeta: named("", "aud"),
			Rules: []rbacv1.PolicyRule{{Verbs: []string{"request-serviceaccounts-token-audience"}, APIGroups: []string{""},
				Resources: []string{"granted-aud"}}}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: named("", "aud"), RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "aud"},
			Subjects: []rbacv1.Subject{{Kind: "User", Name: "system:node:n1"}}},
	)
}

func TestRestrictionOfPods(t *testing.T) {
	r := restrictionRig(t)
	onNode := func(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }
	labelled := func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }
	for _, c := range []struct {
		name string
		request
		want string
	}{
		{"mirror", request{resource: "pods", now: mirrorPod()}, ""},
		{"plain pod", request{resource: "pods", now: newPod()},
			`pod does not have "kubernetes.io/config.mirror" annotation, node "n1" can only create mirror pods`},
		{"mirror of another node", request{resource: "pods", now: mirrorPod(onNode("n2"))},
			`node "n1" can only create pods with spec.nodeName set to itself`},
		{"no owner", request{resource: "pods", now: mirrorPod(func(p *corev1.Pod) { p.OwnerReferences = nil })},
			"can only create pods with an owner reference set to itself"},
		{"two owners", request{resource: "pods",
			now: mirrorPod(func(p *corev1.Pod) { p.OwnerReferences = append(p.OwnerReferences, p.OwnerReferences[0]) })},
			"single owner reference set to itself"},
		{"owned by another", request{resource: "pods", now: mirrorPod(owner(func(o *metav1.OwnerReference) { o.Name = "n2" }))},
			"can only create pods with an owner reference set to itself"},
		{"owned by a pod", request{resource: "pods", now: mirrorPod(owner(func(o *metav1.OwnerReference) { o.Kind = "Pod" }))},
			"can only create pods with an owner reference set to itself"},
		{"no controller", request{resource: "pods", now: mirrorPod(owner(func(o *metav1.OwnerReference) { o.Controller = nil }))},
			"can only create pods with a controller owner reference set to itself"},
		{"blocks deletion", request{resource: "pods",
			now: mirrorPod(owner(func(o *metav1.OwnerReference) { o.BlockOwnerDeletion = ptr.To(true) }))},
			"must not set blockOwnerDeletion on an owner reference"},
		{"other incarnation", request{resource: "pods", now: mirrorPod(owner(func(o *metav1.OwnerReference) { o.UID = "old" }))},
			"node n1 UID mismatch: expected old got u1"},
		{"with account", request{resource: "pods", now: mirrorPod(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "x" })},
			"can not create pods that reference a service account"},
		{"with secret", request{resource: "pods",
			now: mirrorPod(withVolume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}))},
			"can not create pods that reference secrets"},
		{"with config map", request{resource: "pods",
			now: mirrorPod(withVolume(
				corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{
					Name: "c"}}}))}, "can not create pods that reference configmaps"},
		{"with claim", request{resource: "pods",
			now: mirrorPod(withVolume(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
				ClaimName: "c"}}))}, "can not create pods that reference persistentvolumeclaims"},
		{"with resource claim", request{resource: "pods", now: mirrorPod(func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "r", ResourceClaimTemplateName: ptr.To("t")}}
		})}, "can not create pods that reference resourceclaims"},
		{"with token", request{resource: "pods",
			now: mirrorPod(withVolume(
				corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}}}}}))},
			"can not create pods that reference a service account"},
		{"with CSI driver", request{resource: "pods",
			now: mirrorPod(withVolume(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d"}}))},
			"can not create pods that reference csidrivers"},
		{"with trust bundle", request{resource: "pods",
			now: mirrorPod(withVolume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Path: "ca"}}}}}))},
			"can not create pods that reference clustertrustbundles"},
		{"with Gluster endpoints",
			request{resource: "pods",
				now: mirrorPod(withVolume(corev1.VolumeSource{Glusterfs: &corev1.GlusterfsVolumeSource{EndpointsName: "e"}}))},
			"can not create pods that reference endpoints"},
		{"with files of its own",
			request{resource: "pods",
				now: mirrorPod(withVolume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/etc"}}))}, ""},
		{"becomes a mirror by status", request{resource: "pods/status", now: mirrorPod(), old: newPod(onNode("n1"))},
			"cannot add, change or remove the annotation kubernetes.io/config.mirror"},
		{"no mirror any more by status", request{resource: "pods/status", now: newPod(onNode("n1")), old: mirrorPod()},
			"cannot add, change or remove the annotation kubernetes.io/config.mirror"},
		{"status of a mirror", request{resource: "pods/status", now: mirrorPod(), old: mirrorPod()}, ""},
		{"update", request{resource: "pods", now: mirrorPod(), old: mirrorPod()}, `unexpected operation "UPDATE"`},
		{"delete own", request{resource: "pods", old: newPod(func(p *corev1.Pod) { p.Name = "mine" })}, ""},
		{"delete other", request{resource: "pods", old: newPod(func(p *corev1.Pod) { p.Name = "theirs" })},
			`node "n1" can only delete pods with spec.nodeName set to itself`},
		{"delete missing", request{resource: "pods", old: newPod(func(p *corev1.Pod) { p.Name = "gone" })}, "not found"},
		{"status", request{resource: "pods/status", now: newPod(onNode("n1")), old: newPod(onNode("n1"))}, ""},
		{"status of other", request{resource: "pods/status", now: newPod(onNode("n2")), old: newPod(onNode("n2"))},
			"can only update pod status for pods with spec.nodeName set to itself"},
		{"status with label", request{resource: "pods/status", now: newPod(onNode("n1"), labelled), old: newPod(onNode("n1"))},
			`node "n1" cannot update labels through pod status`},
		{"status with claims", request{resource: "pods/status", old: newPod(onNode("n1")), now: newPod(onNode("n1"), func(p *corev1.Pod) {
			p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "r"}}
		})}, `node "n1" cannot update resource claim statuses`},
		{"status with extended claim", request{resource: "pods/status", old: newPod(onNode("n1")),
			now: newPod(onNode("n1"), func(p *corev1.Pod) {
				p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{}
			})}, `node "n1" cannot update extended resource claim status`},
		{"evict own", request{resource: "pods/eviction", now: &policyv1.Eviction{ObjectMeta: named("ns", "mine")}}, ""},
		{"evict other", request{resource: "pods/eviction", now: &policyv1.Eviction{ObjectMeta: named("ns", "theirs")}},
			"node n1 can only evict pods with spec.nodeName set to itself"},
		{"exec", request{resource: "pods/exec", now: newPod()},
			`unexpected pod subresource "exec", only 'status' and 'eviction' are allowed`},
		{"not a node", request{resource: "pods", now: newPod(), user: &user.DefaultInfo{Name: "ann"}}, ""},
		{"nameless node", request{resource: "pods", now: mirrorPod(), user: &user.DefaultInfo{Name: "system:node:",
			Groups: []string{"system:nodes"}}}, `could not determine node from user "system:node:"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.user == nil {
				c.user = node1
			}
			expect(t, r.do(c.request), c.want)
		})
	}
}

func TestRestrictionOfNodes(t *testing.T) {
	r := restrictionRig(t)
	named2 := func(n *corev1.Node) { n.Name = "n2" }
	taint := func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: "NoSchedule"}} }
	//lint:ignore SA1019 that is the point
	source := func(n *corev1.Node) { n.Spec.ConfigSource = &corev1.NodeConfigSource{} }
	for _, c := range []struct {
		name string
		request
		want string
	}{
		{"create", request{resource: "nodes", now: bareNode(taint, label("kubernetes.io/os", "linux"), label("mine/x", "y"),
			label("plain", "z"))}, ""},
		{"create other", request{resource: "nodes", now: bareNode(named2)}, `node "n1" is not allowed to modify node "n2"`},
		{"create with config source", request{resource: "nodes", now: bareNode(source)}, "non-nil configSource"},
		{"create with restricted labels", request{resource: "nodes", now: bareNode(label("node-restriction.kubernetes.io/a", "b"),
			label("x.node-restriction.kubernetes.io/a", "b"), label("node-role.kubernetes.io/control-plane", ""))},
			`node "n1" is not allowed to set the following labels: node-restriction.kubernetes.io/a, ` +
				`node-role.kubernetes.io/control-plane, x.node-restriction.kubernetes.io/a`},
		{"create with allowed labels", request{resource: "nodes", now: bareNode(label("topology.kubernetes.io/zone", "z"),
			label("failure-domain.beta.kubernetes.io/region", "r"),
			label("node.kubernetes.io/instance-type", "i"), label("beta.kubernetes.io/instance-type", "i"),
			label("foo.kubelet.kubernetes.io/x", "y"), label("node.kubernetes.io/windows-build", "1"))}, ""},
		{"update", request{resource: "nodes", now: bareNode(label("kubernetes.io/os", "x")), old: bareNode(label("free", "x"))}, ""},
		{"update other", request{resource: "nodes", now: bareNode(named2, taint), old: bareNode(named2)},
			`node "n1" is not allowed to modify node "n2"`},
		{"update taints", request{resource: "nodes", now: bareNode(taint), old: bareNode()}, `node "n1" is not allowed to modify taints`},
		{"remove taints", request{resource: "nodes/status", now: bareNode(), old: bareNode(taint)},
			`node "n1" is not allowed to modify taints`},
		{"add restricted label", request{resource: "nodes", now: bareNode(label("foo.k8s.io/x", "y")), old: bareNode()},
			"is not allowed to modify labels: foo.k8s.io/x"},
		{"remove restricted label", request{resource: "nodes", now: bareNode(),
			old: bareNode(label("node-restriction.kubernetes.io/x", "y"))},
			"is not allowed to modify labels: node-restriction.kubernetes.io/x"},
		{"keep restricted label", request{resource: "nodes", now: bareNode(label("foo.k8s.io/x", "y")),
			old: bareNode(label("foo.k8s.io/x", "y"))}, ""},
		{"own itself away", request{resource: "nodes",
			now: bareNode(func(n *corev1.Node) { n.OwnerReferences = []metav1.OwnerReference{{Name: "x"}} }), old: bareNode()},
			"is not allowed to modify ownerReferences"},
		{"config source", request{resource: "nodes", now: bareNode(source), old: bareNode()}, "configSource"},
		{"delete own", request{resource: "nodes", old: bareNode()}, ""},
		{"delete other", request{resource: "nodes", old: bareNode(named2)}, `node "n1" is not allowed to modify node "n2"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.user = node1
			expect(t, r.do(c.request), c.want)
		})
	}
}

func TestRestrictionOfTheRest(t *testing.T) {
	r := restrictionRig(t)
	claim := func(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: named("ns", "data")}
		change(c)
		return c
	}
	same := claim(func(*corev1.PersistentVolumeClaim) {})
	announced := func(name, holder string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: named(announceNamespace, name), Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder}}
	}
	lease := func(ns, name string) *coordinationv1.Lease { return &coordinationv1.Lease{ObjectMeta: named(ns, name)} }
	slice := func(node string) *resourcev1.ResourceSlice {
		return &resourcev1.ResourceSlice{ObjectMeta: named("", "s"), Spec: resourcev1.ResourceSliceSpec{NodeName: &node}}
	}
	sliceWith := func(change func(*resourcev1.ResourceSliceSpec)) *resourcev1.ResourceSlice {
		s := slice("n1")
		change(&s.Spec)
		return s
	}
	const serving, client = "kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"
	for _, c := range []struct {
		name string
		request
		want string
	}{
		{"claim status", request{resource: "persistentvolumeclaims/status", old: same, now: claim(func(c *corev1.PersistentVolumeClaim) {
			c.Status.Capacity = corev1.ResourceList{"storage": resource.MustParse("1Gi")}
			c.Status.AllocatedResources = c.Status.Capacity
		})}, ""},
		{"claim phase", request{resource: "persistentvolumeclaims/status", old: same,
			now: claim(func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = "Lost" })},
			`node "n1" is not allowed to update fields other than status.capacity`},
		{"claim labels", request{resource: "persistentvolumeclaims/status", old: same,
			now: claim(func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"a": "b"} })},
			"is not allowed to update fields"},
		{"claim itself", request{resource: "persistentvolumeclaims", old: same, now: same}, "may only update PVC status"},
		{"own lease", request{resource: "leases.coordination.k8s.io", now: lease("kube-node-lease", "n1")}, ""},
		{"other lease", request{resource: "leases.coordination.k8s.io", now: lease("kube-node-lease", "n2")},
			"can only access node lease with the same name as the requesting node"},
		{"renew other lease", request{resource: "leases.coordination.k8s.io", now: lease("kube-node-lease", "n2"),
			old: lease("kube-node-lease", "n2")}, "can only access node lease with the same name"},
		{"own claim of an address", request{resource: "leases.coordination.k8s.io", now: announced("address.192.0.2.1", "n1")}, ""},
		{"a free claim", request{resource: "leases.coordination.k8s.io", now: announced("address.192.0.2.1", ""),
			old: announced("address.192.0.2.1", "n1")}, ""},
		{"the end of another's session", request{resource: "leases.coordination.k8s.io", now: announced("node.n2", ""),
			old: announced("node.n2", "n2")}, ""},
		{"a claim for another", request{resource: "leases.coordination.k8s.io", now: announced("address.192.0.2.1", "n2")},
			`holderIdentity "n2": a node can claim addresses for itself only`},
		{"a claim that another has, renewed for it", request{resource: "leases.coordination.k8s.io", now: announced("node.n2", "n2"),
			old: announced("node.n2", "n2")}, `holderIdentity "n2": a node can claim addresses for itself only`},
		{"a claim that goes", request{resource: "leases.coordination.k8s.io", old: announced("address.192.0.2.1", "n1")},
			"nodes may create and update the leases"},
		{"lease elsewhere", request{resource: "leases.coordination.k8s.io", now: lease("kube-system", "n1")},
			`can only access leases in the "kube-node-lease" system namespace`},
		{"own CSINode", request{resource: "csinodes.storage.k8s.io", now: &storagev1.CSINode{ObjectMeta: named("", "n1")}}, ""},
		{"other CSINode", request{resource: "csinodes.storage.k8s.io", now: &storagev1.CSINode{ObjectMeta: named("", "n2")}},
			"can only access CSINode with the same name as the requesting node"},
		{"own slice", request{resource: "resourceslices.resource.k8s.io", now: slice("n1")}, ""},
		{"other slice", request{resource: "resourceslices.resource.k8s.io", now: slice("n2")},
			"can only create ResourceSlice with the same NodeName as the requesting node"},
		{"update own slice", request{resource: "resourceslices.resource.k8s.io", now: slice("n1"), old: slice("n1")}, ""},
		{"give a slice away", request{resource: "resourceslices.resource.k8s.io", now: slice("n2"), old: slice("n1")},
			"can only update ResourceSlice with the same NodeName"},
		{"take a slice over", request{resource: "resourceslices.resource.k8s.io", now: slice("n1"), old: slice("n2")},
			"can only update ResourceSlice with the same NodeName"},
		{"slice for all nodes", request{resource: "resourceslices.resource.k8s.io", old: slice("n1"),
			now: sliceWith(func(s *resourcev1.ResourceSliceSpec) { s.NodeName, s.AllNodes = nil, ptr.To(true) })},
			"can only update ResourceSlice with the same NodeName"},
		{"slice for all nodes and its own", request{resource: "resourceslices.resource.k8s.io",
			now: sliceWith(func(s *resourcev1.ResourceSliceSpec) { s.AllNodes = ptr.To(true) })},
			"can only create ResourceSlice with the same NodeName"},
		{"slice for chosen nodes", request{resource: "resourceslices.resource.k8s.io", old: slice("n1"),
			now: sliceWith(func(s *resourcev1.ResourceSliceSpec) { s.NodeSelector = &corev1.NodeSelector{} })},
			"can only update ResourceSlice with the same NodeName"},
		{"slice of another driver", request{resource: "resourceslices.resource.k8s.io", old: slice("n1"),
			now: sliceWith(func(s *resourcev1.ResourceSliceSpec) { s.Driver = "gpu.example.com" })},
			`node "n1" cannot move ResourceSlice s to another driver or pool`},
		{"slice of another pool", request{resource: "resourceslices.resource.k8s.io", old: slice("n1"),
			now: sliceWith(func(s *resourcev1.ResourceSliceSpec) { s.Pool.Name = "other" })}, "to another driver or pool"},
		{"new generation of a pool", request{resource: "resourceslices.resource.k8s.io", old: slice("n1"),
			now: sliceWith(func(s *resourcev1.ResourceSliceSpec) { s.Pool.Generation = 2 })}, ""},
		{"delete other slice", request{resource: "resourceslices.resource.k8s.io", old: slice("n2")},
			"can only delete ResourceSlice with the same NodeName as the requesting node"},
		{"own certificate", request{resource: "certificatesigningrequests.certificates.k8s.io", now: certificateRequest(t, "system:node:n1",
			client)}, ""},
		{"other certificate", request{resource: "certificatesigningrequests.certificates.k8s.io",
			now: certificateRequest(t, "system:node:n2", serving)}, "can only create a node CSR with CN=system:node:n1"},
		{"unreadable certificate", request{resource: "certificatesigningrequests.certificates.k8s.io",
			now: &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: client}}},
			"unable to parse csr"},
		{"other signer", request{resource: "certificatesigningrequests.certificates.k8s.io", now: certificateRequest(t, "anyone",
			"example.com/x")}, ""},
		{"token, default audience", request{resource: "serviceaccounts/token", now: tokenFor("Pod", "mine", "m")},
			`audience "" not found in pod spec volume`},
		{"token, projected default audience", request{resource: "serviceaccounts/token", now: tokenFor("Pod", "api", "a")}, ""},
		{"token, projected audience", request{resource: "serviceaccounts/token", now: tokenFor("Pod", "mine", "m", "vault")}, ""},
		{"token, inline driver", request{resource: "serviceaccounts/token", now: tokenFor("Pod", "mine", "m", "inline-aud")}, ""},
		{"token, claim driver", request{resource: "serviceaccounts/token", now: tokenFor("Pod", "mine", "m", "block-aud")}, ""},
		{"token, granted audience", request{resource: "serviceaccounts/token", now: tokenFor("Pod", "mine", "m", "granted-aud")}, ""},
		{"token, other audience", request{resource: "serviceaccounts/token", now: tokenFor("Pod", "mine", "m", "bank")},
			`audience "bank" not found in pod spec volume`},
		{"token, two audiences", request{resource: "serviceaccounts/token", now: tokenFor("Pod", "mine", "m", "vault", "bank")},
			"node may only request 0 or 1 audiences"},
		{"token, unbound", request{resource: "serviceaccounts/token", now: tokenFor("", "", "")},
			"node requested token not bound to a pod"},
		{"token, bound to node", request{resource: "serviceaccounts/token", now: tokenFor("Node", "n1", "u1")},
			"node requested token not bound to a pod"},
		{"token, no uid", request{resource: "serviceaccounts/token", now: tokenFor("Pod", "mine", "")},
			"node requested token with a pod binding without a uid"},
		{"token, old uid", request{resource: "serviceaccounts/token", now: tokenFor("Pod", "mine", "old")},
			"does not match the UID in record"},
		{"token, other node's pod", request{resource: "serviceaccounts/token", now: tokenFor("Pod", "theirs", "t")},
			"node requested token bound to a pod scheduled on a different node"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.user = node1
			expect(t, r.do(c.request), c.want)
		})
	}
}
