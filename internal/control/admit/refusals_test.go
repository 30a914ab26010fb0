package admit_test

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/internal/control/admit"
	"github.com/berth-dev/berth/internal/control/api"
	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// mutatesOnly are the rules that refuse nothing.
var mutatesOnly = []string{admit.TaintNodesByCondition, admit.DefaultTolerationSeconds, admit.DefaultStorageClass,
	admit.StorageObjectInUseProtection, admit.DefaultIngressClass, admit.PodTopologyLabels, admit.NamespaceAutoProvision}

// authored are the rules whose refusals are in the words of who wrote the policy
// or the webhook; TestPoliciesAndWebhooks holds that those words arrive.
var authored = []string{"MutatingAdmissionPolicy", "MutatingAdmissionWebhook", "ValidatingAdmissionPolicy", "ValidatingAdmissionWebhook"}

// ofThePlugin are the rules that no request reaches on a server of the tests,
// because an API of theirs is not served by default or a rule before them sets
// what they look for; TestRulesBehindOthersSayWhatToDo asks the plugin itself.
var ofThePlugin = []string{admit.AlwaysPullImages, admit.ClusterTrustBundleAttest, admit.PodCertificateSigning}

// secretWord stands in what the refused requests carry and must not be repeated.
const secretWord = "hunter2"

// refusal is one request that a rule refuses, as YAML of the object. The request
// is a creation, or a merge patch of the object of that name.
type refusal struct {
	rule    string
	as      string // the user; an administrator by default
	path    string // of the collection below /api or /apis
	object  string
	patch   string // name[/subresource] of the object that is patched
	deletes string // name of the object that is deleted
	names   []string
	remedy  string // where it is not the one in refusal.go
}

var pod = "kind: Pod, apiVersion: v1, metadata: {name: p, annotations: {note: " + secretWord + "}}"

func podWith(spec string) string {
	return "{" + pod + ", spec: {containers: [{name: c, image: good, env: [{name: PASSWORD, value: " + secretWord + "}]}], " + spec + "}}"
}

// refusals has a request for each rule. The namespaces and objects that they meet
// are made by refusalWorld.
var refusals = []refusal{
	{rule: "NamespaceLifecycle", path: "api/v1/namespaces", deletes: "default",
		names: []string{`namespaces "default"`, "this namespace may not be deleted"}, remedy: "hold what the cluster itself needs"},
	{rule: "NamespaceLifecycle", path: "api/v1/namespaces/nowhere/configmaps",
		object: "{kind: ConfigMap, apiVersion: v1, metadata: {name: c}, data: {a: " + secretWord + "}}",
		names:  []string{`namespaces "nowhere"`}},
	{rule: admit.LimitRanger, path: "api/v1/namespaces/limited/pods",
		object: "{" + pod + ", spec: {containers: [{name: c, image: good, resources: {limits: {cpu: 2}}}]}}",
		names:  []string{`pods "p"`, "resources", "maximum cpu"}},
	{rule: admit.ServiceAccount, path: "api/v1/namespaces/strict/pods", object: podWith("volumes: [{name: v, secret: {secretName: s}}]"),
		names: []string{`pods "p"`, "secret", "s", "default"}},
	{rule: admit.NodeRestriction, as: "system:node:n1", path: "apis/resource.k8s.io/v1/resourceslices",
		object: "{kind: ResourceSlice, apiVersion: resource.k8s.io/v1, metadata: {name: s}, spec: {nodeName: n2, driver: a.example.com, " +
			"pool: {name: n2, generation: 1, resourceSliceCount: 1}}}",
		names: []string{`"s"`, "NodeName"}},
	{rule: admit.NodeRestriction, as: "system:node:n1", path: "api/v1/nodes", patch: "n2/status", object: "{status: {phase: Running}}",
		names: []string{`nodes "n2"`, "n1"}},
	{rule: admit.ImagePolicyWebhook, path: "api/v1/namespaces/default/pods",
		object: "{" + pod + ", spec: {containers: [{name: c, image: bad}]}}", names: []string{`pods "p"`, "image", "it is bad"}},
	{rule: admit.PodSecurity, path: "api/v1/namespaces/restricted/pods", object: podWith("hostNetwork: true"),
		names: []string{`pods "p"`, "violates PodSecurity", "hostNetwork"}},
	{rule: admit.PodNodeSelector, path: "api/v1/namespaces/selected/pods", object: podWith("nodeSelector: {zone: b}"),
		names: []string{`pods "p"`, "spec.nodeSelector"}},
	{rule: admit.Priority, path: "api/v1/namespaces/default/pods", object: podWith("priorityClassName: none-such"),
		names: []string{`pods "p"`, "none-such", "spec.priorityClassName"}},
	{rule: admit.PodTolerationRestriction, path: "api/v1/namespaces/tolerant/pods",
		object: podWith("tolerations: [{key: gpu, operator: Exists}]"), names: []string{`pods "p"`, "tolerations"}},
	{rule: admit.EventRateLimit, path: "api/v1/namespaces/default/events",
		object: "{kind: Event, apiVersion: v1, metadata: {generateName: e}, involvedObject: {kind: Pod, namespace: default, name: p}, " +
			"message: " + secretWord + "}",
		names: []string{"default", "limit reached on type Namespace"}},
	{rule: admit.OwnerReferencesPermissionEnforcement, as: "tenant", path: "api/v1/namespaces/default/configmaps",
		object: "{kind: ConfigMap, apiVersion: v1, metadata: {name: c, ownerReferences: [{apiVersion: v1, kind: Secret, name: s, uid: u, " +
			"blockOwnerDeletion: true}]}}",
		names: []string{`configmaps "c"`, "blockOwnerDeletion", "secrets"}},
	{rule: admit.PersistentVolumeClaimResize, path: "api/v1/namespaces/default/persistentvolumeclaims", patch: "bound",
		object: "{spec: {resources: {requests: {storage: 2Gi}}}}",
		names:  []string{`persistentvolumeclaims "bound"`, "spec.resources.requests.storage", "allowVolumeExpansion"}},
	{rule: admit.RuntimeClass, path: "api/v1/namespaces/default/pods", object: podWith("runtimeClassName: none-such"),
		names: []string{`pods "p"`, "none-such", "spec.runtimeClassName"}},
	{rule: admit.PodResizeValidator, path: "api/v1/namespaces/default/pods", patch: "bound/resize",
		object: "{spec: {containers: [{name: c, resources: {requests: {cpu: 2}}}]}}", names: []string{`pods "bound"`, "gone-node"}},
	{rule: admit.CertificateApproval, as: "tenant", path: "apis/certificates.k8s.io/v1/certificatesigningrequests", patch: "csr/approval",
		object: "{status: {conditions: [{type: Approved, status: \"True\", reason: r, message: m}]}}",
		names:  []string{`"csr"`, "example.com/one", "signerName"}},
	{rule: admit.CertificateSigning, as: "tenant", path: "apis/certificates.k8s.io/v1/certificatesigningrequests", patch: "csr/status",
		object: "{status: {conditions: [{type: Failed, status: \"True\", reason: r, message: m}]}}",
		names:  []string{`"csr"`, "example.com/one", "signerName"}},
	{rule: admit.CertificateSubjectRestriction, path: "apis/certificates.k8s.io/v1/certificatesigningrequests", object: "csr-of-masters",
		names: []string{`"masters"`, "system:masters", "spec.request"}},
	{rule: admit.DenyServiceExternalIPs, path: "api/v1/namespaces/default/services",
		object: "{kind: Service, apiVersion: v1, metadata: {name: s}, spec: {ports: [{port: 80}], externalIPs: [203.0.113.9]}}",
		names:  []string{`services "s"`, "spec.externalIPs", "203.0.113.9", "use type LoadBalancer"}},
	{rule: admit.ServiceLoadBalancerIngressRestriction, as: "tenant", path: "api/v1/namespaces/default/services", patch: "balanced/status",
		object: "{status: {loadBalancer: {ingress: [{ip: 203.0.113.9}]}}}",
		names:  []string{`services "balanced"`, "status.loadBalancer.ingress[0]", "services/status in all namespaces"}},
	{rule: admit.EndpointAddressRestriction, as: "tenant", path: "apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
		object: "{kind: EndpointSlice, apiVersion: discovery.k8s.io/v1, metadata: {name: e}, addressType: IPv4, endpoints: " +
			"[{addresses: [192.0.2.77]}], ports: []}",
		names: []string{`"e"`, "192.0.2.77", "may lead to its own pods and out of the cluster"}},
	{rule: admit.DeviceAdminAccess, path: "apis/resource.k8s.io/v1/namespaces/default/resourceclaims",
		object: "{kind: ResourceClaim, apiVersion: resource.k8s.io/v1, metadata: {name: r}, spec: {devices: {requests: [{name: a, " +
			"exactly: {deviceClassName: gpu, adminAccess: true}}]}}}",
		names: []string{`"r"`, "adminAccess"}},
	{rule: admit.RBACEscalation, as: "tenant", path: "apis/rbac.authorization.k8s.io/v1/clusterroles",
		object: "{kind: ClusterRole, apiVersion: rbac.authorization.k8s.io/v1, metadata: {name: more}, rules: [{verbs: ['*'], apiGroups: " +
			"['*'], resources: ['*']}]}",
		names: []string{`"more"`, "attempting to grant RBAC permissions not currently held"}},
	{rule: "ResourceQuota", path: "api/v1/namespaces/quota/secrets",
		object: "{kind: Secret, apiVersion: v1, metadata: {name: s}, stringData: {password: " + secretWord + "}}",
		names:  []string{`secrets "s"`, "exceeded quota: none, requested: secrets=1", "spec.hard"}},
}

// refusalServer runs with every rule but the one that makes namespaces up.
func refusalServer(t *testing.T) *apitest.Env {
	t.Helper()
	policy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review imagepolicyv1alpha1.ImageReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		image := review.Spec.Containers[0].Image
		review.Status.Allowed, review.Status.Reason = image != "bad", "it is "+image
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(policy.Close)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	kubeconfig := write("kubeconfig", "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: \""+
		policy.URL+"\"}}]\ncontexts: [{name: c, context: {cluster: c}}]\n")
	config := write("admission.yaml", "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n"+
		"- name: EventRateLimit\n  configuration:\n    apiVersion: eventratelimit.admission.k8s.io/v1alpha1\n    kind: Configuration\n"+
		"    limits: [{type: Namespace, qps: 1, burst: 1}]\n"+
		"- name: ImagePolicyWebhook\n  configuration:\n    imagePolicy: {kubeConfigFile: "+kubeconfig+", retryBackoff: 1}\n")
	return apitest.StartEnv(t, apitest.WithConfig(func(c *api.Config) {
		c.Options = api.NewOptions()
		c.Options.Audit.LogOptions.Path = ""
		c.Options.Admission.EnablePlugins = admit.DefaultOff.Clone().Delete(admit.NamespaceAutoProvision).UnsortedList()
		c.Options.Admission.ConfigFile = config
	}))
}

// refusalWorld makes what the refused requests meet.
func refusalWorld(t *testing.T, env *apitest.Env) {
	t.Helper()
	for _, row := range []refusal{
		{path: "api/v1/namespaces", object: "{kind: Namespace, metadata: {name: limited}}"},
		{path: "api/v1/namespaces", object: "{kind: Namespace, metadata: {name: strict}}"},
		{path: "api/v1/namespaces", object: "{kind: Namespace, metadata: {name: quota}}"},
		{path: "api/v1/namespaces", object: "{kind: Namespace, metadata: {name: restricted, labels: " +
			"{pod-security.kubernetes.io/enforce: restricted}}}"},
		{path: "api/v1/namespaces", object: "{kind: Namespace, metadata: {name: selected, annotations: " +
			"{scheduler.alpha.kubernetes.io/node-selector: zone=a}}}"},
		{path: "api/v1/namespaces", object: "{kind: Namespace, metadata: {name: tolerant, annotations: " +
			`{scheduler.alpha.kubernetes.io/tolerationsWhitelist: '[{"key": "tpu", "operator": "Exists"}]'}}}`},
		{path: "api/v1/namespaces/limited/limitranges",
			object: "{kind: LimitRange, metadata: {name: l}, spec: {limits: [{type: Container, " +
				"max: {cpu: 1}}]}}"},
		{path: "api/v1/namespaces/quota/resourcequotas",
			object: "{kind: ResourceQuota, metadata: {name: none}, spec: {hard: {secrets: 0}}}"},
		{path: "api/v1/namespaces/quota/resourcequotas", patch: "none/status",
			object: "{status: {hard: {secrets: 0}, used: {secrets: 0}}}"},
		{path: "api/v1/namespaces/default/services", object: "{kind: Service, metadata: {name: balanced}, spec: {type: LoadBalancer, " +
			"ports: [{port: 80}]}}"},
		{path: "api/v1/nodes", object: "{kind: Node, metadata: {name: gone-node}}"},
		{path: "api/v1/nodes", object: "{kind: Node, metadata: {name: n2}}"},
		{path: "api/v1/nodes", patch: "n2/status", object: "{status: {addresses: [{type: InternalIP, address: 192.0.2.77}]}}"},
		{path: "api/v1/namespaces/default/persistentvolumeclaims", object: "{kind: PersistentVolumeClaim, metadata: {name: bound}, spec: " +
			"{volumeName: v, storageClassName: fixed, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}"},
		{path: "api/v1/namespaces/default/persistentvolumeclaims", patch: "bound/status",
			object: "{status: {phase: Bound, capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce]}}"},
		{path: "apis/certificates.k8s.io/v1/certificatesigningrequests", object: "csr-of-one"},
		{path: "apis/rbac.authorization.k8s.io/v1/clusterroles", object: "{kind: ClusterRole, metadata: {name: tenant}, rules: [" +
			"{verbs: [create], apiGroups: [''], resources: [configmaps]}, " +
			"{verbs: [create, patch], apiGroups: [rbac.authorization.k8s.io], resources: [clusterroles]}, " +
			"{verbs: [get, patch, update], apiGroups: [certificates.k8s.io], resources: [certificatesigningrequests/approval, " +
			"certificatesigningrequests/status]}]}"},
		{path: "apis/rbac.authorization.k8s.io/v1/namespaces/default/roles", object: "{kind: Role, metadata: {name: tenant}, rules: [" +
			"{verbs: [patch, update], apiGroups: [''], resources: [services/status]}, " +
			"{verbs: [create], apiGroups: [discovery.k8s.io], resources: [endpointslices]}]}"},
		{path: "apis/rbac.authorization.k8s.io/v1/clusterrolebindings", object: "{kind: ClusterRoleBinding, metadata: {name: tenant}, " +
			"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: tenant}, subjects: [{apiGroup: " +
			"rbac.authorization.k8s.io, kind: User, name: tenant}]}"},
		{path: "apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
			object: "{kind: RoleBinding, metadata: {name: tenant}, " +
				"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: tenant}, subjects: [{apiGroup: " +
				"rbac.authorization.k8s.io, kind: User, name: tenant}]}"},
	} {
		if err := ask(t, env, row); err != nil {
			t.Fatalf("%s %s: %v", row.path, row.object, err)
		}
	}
	for _, namespace := range []string{"default", "limited", "strict", "restricted", "selected", "tolerant"} {
		account := "{kind: ServiceAccount, metadata: {name: default}}"
		if namespace == "strict" {
			account = "{kind: ServiceAccount, metadata: {name: default, annotations: {kubernetes.io/enforce-mountable-secrets: \"true\"}}}"
		}
		if err := ask(t, env, refusal{path: "api/v1/namespaces/" + namespace + "/serviceaccounts", object: account}); err != nil {
			t.Fatal(err)
		}
	}
	if err := ask(t, env, refusal{path: "api/v1/namespaces/default/pods",
		object: "{kind: Pod, metadata: {name: bound}, spec: {nodeName: gone-node, containers: [{name: c, image: good, resources: " +
			"{requests: {cpu: 1}}}]}}"}); err != nil {
		t.Fatal(err)
	}
	admin := client(t, env.Config)
	if err := admin.CoreV1().Nodes().Delete(t.Context(), "gone-node", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	tenant := client(t, env.As(t, "tenant"))
	eventually(t, "the tenant's rights", func() bool {
		return reviewed(t, tenant, "update", "certificates.k8s.io", "certificatesigningrequests/status") &&
			reviewed(t, tenant, "create", "rbac.authorization.k8s.io", "clusterroles")
	})
}

// ask sends the request of a row and returns the answer's error.
func ask(t *testing.T, env *apitest.Env, row refusal) error {
	t.Helper()
	config := env.Config
	switch {
	case strings.HasPrefix(row.as, "system:node:"):
		config = env.As(t, row.as, "system:nodes")
	case row.as != "":
		config = env.As(t, row.as)
	}
	rest := client(t, config).Discovery().RESTClient()
	if row.deletes != "" {
		return rest.Delete().AbsPath(row.path, row.deletes).Do(t.Context()).Error()
	}
	text := row.object
	if signer, ok := strings.CutPrefix(text, "csr-of-"); ok {
		text = signingRequest(t, signer)
	}
	body, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if row.patch != "" {
		return rest.Patch(types.MergePatchType).AbsPath(row.path, row.patch).MaxRetries(0).Body(body).Do(t.Context()).Error()
	}
	return rest.Post().AbsPath(row.path).SetHeader("Content-Type", "application/json").MaxRetries(0).Body(body).Do(t.Context()).Error()
}

// TestEveryRuleSaysWhatToDo: each refusal names the rule, the object, the field
// where there is one, and the remedy, and repeats no secret of the request. A
// plugin without a row fails.
func TestEveryRuleSaysWhatToDo(t *testing.T) {
	covered := slices.Concat(mutatesOnly, authored, ofThePlugin, []string{admit.NamespaceExists})
	for _, row := range refusals {
		covered = append(covered, row.rule)
	}
	for _, rule := range admit.RecommendedOrder {
		if !slices.Contains(covered, rule) {
			t.Errorf("admission plugin %s has no refusal in this table: add a request that it refuses, and its remedy in refusal.go", rule)
		}
	}
	env := refusalServer(t)
	refusalWorld(t, env)
	for _, row := range refusals {
		t.Run(row.rule, func(t *testing.T) {
			err := ask(t, env, row)
			for i := 0; row.rule == admit.EventRateLimit && err == nil && i < 20; i++ {
				err = ask(t, env, row) // the bucket holds one event and gets one each second
			}
			if err == nil {
				err = retryUntilRefused(t, env, row)
			}
			said(t, err, row.rule, append(row.names, cmp.Or(row.remedy, admit.Remedies[row.rule])))
		})
	}
}

// TestAuthorizersSayWhatIsMissing: who may not is told the right in the words in
// which it is granted.
func TestAuthorizersSayWhatIsMissing(t *testing.T) {
	env := apitest.StartEnv(t)
	secret := "{kind: Secret, apiVersion: v1, metadata: {name: s}, stringData: {password: " + secretWord + "}}"
	if err := ask(t, env, refusal{path: "api/v1/namespaces/default/secrets", object: secret}); err != nil {
		t.Fatal(err)
	}
	for _, row := range []refusal{
		{rule: "cannot create", as: "tenant", path: "api/v1/namespaces/default/secrets", object: secret,
			names: []string{"secrets is forbidden", `User "tenant"`, `resource "secrets" in API group ""`, `in the namespace "default"`}},
		{rule: "cannot patch", as: "system:node:n1", path: "api/v1/namespaces/default/secrets", patch: "s",
			object: "{stringData: {password: " + secretWord + "}}",
			names: []string{`secrets "s" is forbidden`, `User "system:node:n1"`, `resource "secrets"`,
				"can only get/list/watch individual resources of this type"}},
	} {
		said(t, ask(t, env, row), row.rule, row.names)
	}
}

// retryUntilRefused asks again while an informer of the server may not have seen
// what the request meets.
func retryUntilRefused(t *testing.T, env *apitest.Env, row refusal) (err error) {
	t.Helper()
	n := 0
	eventually(t, "the refusal by "+row.rule, func() bool {
		n++
		again := row
		again.object = strings.ReplaceAll(row.object, "{name: p,", fmt.Sprintf("{name: p%d,", n))
		err = ask(t, env, again)
		return err != nil
	})
	return err
}

func said(t *testing.T, err error, rule string, names []string) {
	t.Helper()
	if err == nil {
		t.Fatal("admitted")
	}
	t.Log(err)
	for _, want := range append(names, rule) {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("does not say %q: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), secretWord) {
		t.Errorf("repeats what the request holds: %v", err)
	}
}

// signingRequest is a CertificateSigningRequest for one of the signers.
func signingRequest(t *testing.T, signer string) string {
	t.Helper()
	name, signerName, organization := "csr", "example.com/one", "devs"
	if signer == "masters" {
		name, signerName, organization = "masters", "kubernetes.io/kube-apiserver-client", "system:masters"
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "ann", Organization: []string{organization}}}, key)
	if err != nil {
		t.Fatal(err)
	}
	request := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	return fmt.Sprintf("{kind: CertificateSigningRequest, apiVersion: certificates.k8s.io/v1, metadata: {name: %s}, spec: "+
		"{signerName: %s, "+
		"request: %s, usages: [client auth]}}", name, signerName, base64.StdEncoding.EncodeToString(request))
}

// TestNamespaceExistsSaysWhatToDo: it speaks only where NamespaceLifecycle is off.
func TestNamespaceExistsSaysWhatToDo(t *testing.T) {
	env := apitest.StartEnv(t, apitest.WithConfig(func(c *api.Config) {
		c.Options = api.NewOptions()
		c.Options.Audit.LogOptions.Path = ""
		c.Options.Admission.EnablePlugins = []string{admit.NamespaceExists}
		c.Options.Admission.DisablePlugins = []string{"NamespaceLifecycle"}
	}))
	said(t, ask(t, env, refusal{path: "api/v1/namespaces/nowhere/configmaps",
		object: "{kind: ConfigMap, apiVersion: v1, metadata: {name: c}, data: {a: " + secretWord + "}}"}),
		admit.NamespaceExists, []string{`namespaces "nowhere"`, admit.Remedies[admit.NamespaceExists]})
}
