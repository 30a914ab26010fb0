package nodeauthz

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

func podOn(node, name, secret string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: "sa-" + name, Volumes: []corev1.Volume{
			{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret}}},
			{Name: "c", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
				ClaimName: "claim-" + name}}},
		}},
	}
}

func mirrorOn(node, name, secret string) *corev1.Pod {
	p := podOn(node, name, secret)
	p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	return p
}

func newAuthorizer(t *testing.T, patience time.Duration) *Authorizer {
	t.Helper()
	a, err := New(Config{Informers: informers.NewSharedInformerFactory(fake.NewClientset(), 0), ResourceSlices: true, Patience: patience})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestRules(t *testing.T) {
	a := newAuthorizer(t, 0)
	own, other := "n1", "n2"
	for _, obj := range []any{
		podOn("n1", "mine", "s1"), podOn("n2", "theirs", "s2"), mirrorOn("n1", "mirror", "s3"),
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v1"}, Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "claim-mine"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				NodeStageSecretRef:         &corev1.SecretReference{Namespace: "storage", Name: "stage"},
				ControllerPublishSecretRef: &corev1.SecretReference{Namespace: "storage", Name: "controller"},
			}},
		}},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v2"},
			Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "claim-theirs"}}},
		&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va1"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "n1"}},
		&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va2"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "n2"}},
		&resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "slice1"}, Spec: resourcev1.ResourceSliceSpec{NodeName: &own}},
		&resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "slice2"}, Spec: resourcev1.ResourceSliceSpec{NodeName: &other}},
		&certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "r1"},
			Spec: certificatesv1.PodCertificateRequestSpec{NodeName: "n1"}},
		&certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "r2"},
			Spec: certificatesv1.PodCertificateRequestSpec{NodeName: "n2"}},
	} {
		a.set(obj)
	}
	// Each line: verbs, resource[.group][/sub], namespace/name (or -), field
	// selector (or nothing); + allowed, - not.
	for _, line := range strings.Split(strings.TrimSpace(rulesTable), "\n") {
		f := strings.Fields(line)
		attributes := authorizer.AttributesRecord{
			User:            &user.DefaultInfo{Name: "system:node:n1", Groups: []string{"system:nodes", "system:authenticated"}},
			ResourceRequest: true,
		}
		base, sub, _ := strings.Cut(f[2], "/")
		attributes.Subresource = sub
		attributes.Resource, attributes.APIGroup, _ = strings.Cut(base, ".")
		if f[3] != "-" {
			var namespaced bool
			if attributes.Namespace, attributes.Name, namespaced = strings.Cut(f[3], "/"); !namespaced {
				attributes.Namespace, attributes.Name = "", attributes.Namespace
			}
		}
		if len(f) > 4 {
			attributes.FieldSelectorRequirements = fields.ParseSelectorOrDie(f[4]).Requirements()
		}
		for _, verb := range strings.Split(f[1], ",") {
			attributes.Verb = verb
			decision, reason, err := a.Authorize(t.Context(), attributes)
			if want := f[0] == "+"; (decision == authorizer.DecisionAllow) != want || err != nil || decision == authorizer.DecisionDeny {
				t.Errorf("%s %s: got %v (%s) %v, want allowed %v", verb, line, decision, reason, err, want)
			}
		}
	}
}

const rulesTable = `
+ get,list,watch secrets ns/s1
- get,list,watch secrets ns/s2
- get secrets ns/s3
- list,watch secrets ns/
- list,watch secrets -
- delete,update,patch,create secrets ns/s1
- get secrets/status ns/s1
+ get secrets storage/stage
- get secrets storage/controller
- get,list,watch configmaps ns/none
+ get persistentvolumeclaims ns/claim-mine
- list,watch,update persistentvolumeclaims ns/claim-mine
- get persistentvolumeclaims ns/claim-theirs
+ update,patch persistentvolumeclaims/status ns/claim-mine
- update,patch persistentvolumeclaims/status ns/claim-theirs
- get persistentvolumeclaims/status ns/claim-mine
+ get persistentvolumes v1
- get persistentvolumes v2
- list persistentvolumes -
+ get volumeattachments.storage.k8s.io va1
- get volumeattachments.storage.k8s.io va2
- list volumeattachments.storage.k8s.io -
+ get serviceaccounts ns/sa-mine
- get serviceaccounts ns/sa-theirs
- get serviceaccounts ns/sa-mirror
+ create serviceaccounts/token ns/sa-mine
- create serviceaccounts/token ns/sa-theirs
- update serviceaccounts ns/sa-mine
+ get pods ns/mine
+ get pods ns/mirror
- get pods ns/theirs
+ list,watch pods ns/mine
- list,watch pods ns/theirs
- list,watch pods -
+ list,watch pods - spec.nodeName=n1
- list,watch pods - spec.nodeName=n2
- list,watch pods - spec.nodeName!=n1
+ create,delete pods ns/any
- update,patch,deletecollection pods ns/mine
+ update,patch pods/status ns/any
+ create pods/eviction ns/any
- create pods/exec ns/mine
- create pods/binding ns/mine
+ create nodes -
+ update,patch nodes n1
+ update,patch nodes/status n1
- delete nodes n1
- deletecollection nodes -
+ get,list,watch nodes n1
+ list,watch nodes - metadata.name=n1
- list,watch nodes -
- get,list,watch nodes n2
- get nodes/proxy n1
+ create leases.coordination.k8s.io kube-node-lease/
+ get,update,patch,delete leases.coordination.k8s.io kube-node-lease/n1
- get,update,patch,delete leases.coordination.k8s.io kube-node-lease/n2
- get,create leases.coordination.k8s.io ns/n1
- list,watch leases.coordination.k8s.io kube-node-lease/
+ get,create,update,patch,delete csinodes.storage.k8s.io n1
- get,update,patch,delete csinodes.storage.k8s.io n2
- list csinodes.storage.k8s.io -
+ create resourceslices.resource.k8s.io -
+ get,update,patch,delete resourceslices.resource.k8s.io slice1
- get,update,patch,delete resourceslices.resource.k8s.io slice2
+ list,watch,deletecollection resourceslices.resource.k8s.io - spec.nodeName=n1
- list,watch,deletecollection resourceslices.resource.k8s.io -
+ create podcertificaterequests.certificates.k8s.io ns/r1
+ get podcertificaterequests.certificates.k8s.io ns/r1
- get podcertificaterequests.certificates.k8s.io ns/r2
- get podcertificaterequests.certificates.k8s.io other/r1
- list,watch podcertificaterequests.certificates.k8s.io -
+ list,watch podcertificaterequests.certificates.k8s.io - spec.nodeName=n1
- list,watch podcertificaterequests.certificates.k8s.io - spec.nodeName=n2
- update,patch,delete,deletecollection podcertificaterequests.certificates.k8s.io ns/r1
- update,patch podcertificaterequests.certificates.k8s.io/status ns/r1
+ get,list,watch services -
+ get,list,watch runtimeclasses.node.k8s.io -
+ get,list,watch csidrivers.storage.k8s.io -
+ create,get,list,watch certificatesigningrequests.certificates.k8s.io -
+ create tokenreviews.authentication.k8s.io -
+ create subjectaccessreviews.authorization.k8s.io -
+ create,patch,update events ns/e
+ get endpoints ns/e
- get deployments.apps ns/d
- create namespaces -
`

func TestWhoIsANode(t *testing.T) {
	a := newAuthorizer(t, 0)
	for _, c := range []struct {
		name   string
		groups []string
		want   authorizer.Decision
	}{
		{"system:node:n1", []string{"system:nodes"}, authorizer.DecisionAllow},
		{"system:node:n1", nil, authorizer.DecisionNoOpinion},
		{"ann", []string{"system:nodes"}, authorizer.DecisionNoOpinion},
		{"system:node:", []string{"system:nodes"}, authorizer.DecisionNoOpinion},
	} {
		got, _, err := a.Authorize(t.Context(), authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: c.name, Groups: c.groups}, Verb: "list", Resource: "services", ResourceRequest: true,
		})
		if got != c.want || err != nil {
			t.Errorf("%s in %v: got %v, %v, want %v", c.name, c.groups, got, err, c.want)
		}
	}
}

func TestAPodIsForgotten(t *testing.T) {
	a := newAuthorizer(t, 0)
	ask := authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: "system:node:n1", Groups: []string{"system:nodes"}}, Verb: "get",
		Resource: "secrets", Namespace: "ns", Name: "s1", ResourceRequest: true,
	}
	a.set(podOn("", "p", "s1"))
	if got, _, _ := a.Authorize(t.Context(), ask); got == authorizer.DecisionAllow {
		t.Error("a pod on no node gives access")
	}
	a.set(podOn("n1", "p", "s1"))
	if got, _, _ := a.Authorize(t.Context(), ask); got != authorizer.DecisionAllow {
		t.Error("a bound pod gives no access")
	}
	a.forget(podOn("n1", "p", "s1"))
	if got, _, _ := a.Authorize(t.Context(), ask); got == authorizer.DecisionAllow {
		t.Error("a deleted pod gives access")
	}
}

func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthorizer(t, time.Second)
		ask := authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: "system:node:n1", Groups: []string{"system:nodes"}}, Verb: "get",
			Resource: "secrets", Namespace: "ns", Name: "s1", ResourceRequest: true,
		}
		answers := make(chan authorizer.Decision, 1)
		request := func(ctx context.Context) {
			go func() {
				d, _, _ := a.Authorize(ctx, ask)
				answers <- d
			}()
			synctest.Wait()
		}
		start := time.Now()
		request(t.Context())
		a.set(podOn("n2", "elsewhere", "s1"))
		a.set(podOn("n1", "unrelated", "s2"))
		time.Sleep(100 * time.Millisecond)
		a.set(podOn("n1", "p", "s1"))
		if got := <-answers; got != authorizer.DecisionAllow || time.Since(start) != 100*time.Millisecond {
			t.Errorf("got %v after %v, want Allow as soon as the pod is known", got, time.Since(start))
		}
		a.forget(podOn("n1", "p", "s1"))
		start = time.Now()
		request(t.Context())
		if got := <-answers; got != authorizer.DecisionNoOpinion || time.Since(start) != time.Second {
			t.Errorf("got %v after %v, want NoOpinion when patience ends", got, time.Since(start))
		}
		ctx, cancel := context.WithCancel(t.Context())
		request(ctx)
		cancel()
		if got := <-answers; got != authorizer.DecisionNoOpinion {
			t.Errorf("got %v for a request that went away", got)
		}
	})
}
