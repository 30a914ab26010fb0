package api

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	certificates "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// signer answers what pods ask of example.com/yes and denies what they ask of
// example.com/no. It may do no more than a signer needs.
type signer struct {
	c      *kit.Cluster
	client kubernetes.Interface
	key    crypto.Signer
	cert   *x509.Certificate
	der    []byte

	mu       sync.Mutex
	problems []string
}

const signerRights = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: test-signer}
rules:
- {apiGroups: [certificates.k8s.io], resources: [podcertificaterequests], verbs: [get, list, watch]}
- {apiGroups: [certificates.k8s.io], resources: [podcertificaterequests/status], verbs: [update]}
- {apiGroups: [certificates.k8s.io], resources: [signers], resourceNames: ["example.com/*"], verbs: [sign]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: test-signer}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: test-signer}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: test-signer}]
`

func newSigner(t *testing.T, c *kit.Cluster) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &signer{c: c, key: key, cert: cert, der: der}
}

// as is a client that acts for somebody.
func as(c *kit.Cluster, t *testing.T, user string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.Dir, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// serve answers requests until the context ends; a watch that ends with the
// server is begun again.
func (s *signer) serve(ctx context.Context) {
	for ctx.Err() == nil {
		w, err := s.client.CertificatesV1().PodCertificateRequests("").Watch(ctx, metav1.ListOptions{})
		if err != nil {
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		for ev := range w.ResultChan() {
			if r, ok := ev.Object.(*certificates.PodCertificateRequest); ok && len(r.Status.Conditions) == 0 && ev.Type != "DELETED" {
				s.answer(ctx, r.DeepCopy())
			}
		}
	}
}

func (s *signer) answer(ctx context.Context, r *certificates.PodCertificateRequest) {
	condition := metav1.Condition{Type: "Denied", Status: metav1.ConditionTrue, Reason: "UnsupportedKeyType", Message: "use RSA3072",
		LastTransitionTime: metav1.Now()}
	if r.Spec.SignerName == "example.com/yes" {
		condition.Type, condition.Reason, condition.Message = "Issued", "Signed", ""
		s.sign(r)
	}
	r.Status.Conditions = []metav1.Condition{condition}
	_, err := s.client.CertificatesV1().PodCertificateRequests(r.Namespace).UpdateStatus(ctx, r, metav1.UpdateOptions{})
	if err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && apierrors.ReasonForError(err) != "" {
		s.mu.Lock()
		s.problems = append(s.problems, err.Error())
		s.mu.Unlock()
	}
}

func (s *signer) sign(r *certificates.PodCertificateRequest) {
	request, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	if err != nil {
		s.c.T.Error(err)
		return
	}
	notBefore := time.Now().Add(-time.Minute).Truncate(time.Second)
	leaf := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: notBefore, NotAfter: notBefore.Add(time.Hour),
		DNSNames: []string{r.Spec.PodName + ".example.com"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, leaf, s.cert, request.PublicKey, s.key)
	if err != nil {
		s.c.T.Error(err)
		return
	}
	begin, end, refresh := metav1.NewTime(leaf.NotBefore), metav1.NewTime(leaf.NotAfter), metav1.NewTime(leaf.NotBefore.Add(30*time.Minute))
	r.Status.NotBefore, r.Status.NotAfter, r.Status.BeginRefreshAt = &begin, &end, &refresh
	for _, der := range [][]byte{der, s.der} {
		r.Status.CertificateChain += string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	}
}

// check says what is wrong with a bundle that a pod holds.
func (s *signer) check(bundle, name string) (serial string, err error) {
	pair, err := tls.X509KeyPair([]byte(bundle), []byte(bundle))
	if err != nil {
		return "", err
	}
	roots := x509.NewCertPool()
	ca, err := x509.ParseCertificate(s.der)
	if err != nil {
		return "", err
	}
	roots.AddCert(ca)
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
		return "", err
	}
	return pair.Leaf.SerialNumber.String(), nil
}

const certifiedPods = `
apiVersion: v1
kind: Pod
metadata: {name: certified}
spec:
  terminationGracePeriodSeconds: 0
  securityContext: {runAsUser: 1000}
  volumes:
  - name: tls
    projected:
      sources:
      - podCertificate: {signerName: example.com/yes, keyType: ECDSAP256, maxExpirationSeconds: 3600, credentialBundlePath: bundle.pem}
      - podCertificate: {signerName: example.com/yes, keyType: ED25519, keyPath: key.pem, certificateChainPath: chain.pem, ` +
	`userAnnotations: {example.com/a: b}}
  containers: [{name: c, image: berth.dev/toolbox:1, command: [sleep, "10000"], volumeMounts: [{name: tls, mountPath: /tls}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: refused}
spec:
  terminationGracePeriodSeconds: 0
  volumes:
  - name: tls
    projected:
      sources: [{podCertificate: {signerName: example.com/no, keyType: ED25519, credentialBundlePath: bundle.pem}}]
  containers: [{name: c, image: berth.dev/toolbox:1, command: [sleep, "10000"], volumeMounts: [{name: tls, mountPath: /tls}]}]
`

// TestPodCertificates has a signer of its own give pods certificates: one pod
// gets valid chains for the keys it holds, and new ones when the agent starts
// again, without a restart; one is denied, waits, and its events say why.
func TestPodCertificates(t *testing.T) {
	c := kit.NewCluster(t)
	c.Up()
	s := newSigner(t, c)
	s.client = as(c, t, "test-signer")
	c.Apply(signerRights)
	c.Apply(certifiedPods)

	// A stranger may not answer for the signer, not even to deny.
	var asked *certificates.PodCertificateRequest
	c.Eventually("the node asks for the pods", func() (bool, string) {
		l, err := c.Client.CertificatesV1().PodCertificateRequests("default").List(context.Background(), metav1.ListOptions{})
		if err != nil || len(l.Items) < 3 {
			return false, fmt.Sprint(err)
		}
		asked = &l.Items[0]
		return true, ""
	})
	c.Kubectl("create", "clusterrole", "answer", "--verb=update,get", "--resource=podcertificaterequests/status")
	c.Kubectl("create", "clusterrolebinding", "answer", "--clusterrole=answer", "--user=stranger")
	asked.Status.Conditions = []metav1.Condition{{Type: "Denied", Status: metav1.ConditionTrue, Reason: "R",
		LastTransitionTime: metav1.Now()}}
	_, err := as(c, t, "stranger").CertificatesV1().PodCertificateRequests("default").UpdateStatus(context.Background(), asked,
		metav1.UpdateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `is not permitted to "sign" for signer`) {
		t.Errorf("a stranger answered: %v", err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.serve(ctx) })
	defer wg.Wait()
	defer cancel()
	c.WaitPod("certified", "runs", kit.PodReady)
	bundle := func() string { return c.Kubectl("exec", "certified", "--", "cat", "/tls/bundle.pem") }
	first, err := s.check(bundle(), "certified.example.com")
	if err != nil {
		t.Fatal(err)
	}
	pair := c.Kubectl("exec", "certified", "--", "cat", "/tls/key.pem") + c.Kubectl("exec", "certified", "--", "cat", "/tls/chain.pem")
	if _, err := s.check(pair, "certified.example.com"); err != nil {
		t.Errorf("the key and the chain: %v", err)
	}

	c.Eventually("the refused pod's events say why", func() (bool, string) {
		p := c.Pod("refused")
		events := strings.Join(c.PodEvents(p), "\n")
		want := `PodCertificateRequest was permanently denied: reason="UnsupportedKeyType" message="use RSA3072"`
		waits := p.Status.Phase == v1.PodPending && len(p.Status.ContainerStatuses) == 1 &&
			p.Status.ContainerStatuses[0].State.Waiting != nil &&
			p.Status.ContainerStatuses[0].State.Waiting.Reason == "ContainerCreating"
		return waits && strings.Contains(events, "FailedMount") && strings.Contains(events, want), kit.Describe(p) + "\n" + events
	})

	// The keys are in memory only: an agent that starts again asks again, and the
	// pod goes on with what it has until there is another.
	restarts := c.Pod("certified").Status.ContainerStatuses[0].ContainerID
	pid := c.PID()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	kit.WaitProcessGone(t, pid)
	c.Up()
	c.Eventually("another certificate reaches the pod", func() (bool, string) {
		serial, err := s.check(bundle(), "certified.example.com")
		if err != nil {
			t.Fatalf("the bundle is not whole: %v", err)
		}
		return serial != first, serial
	})
	if now := c.Pod("certified").Status.ContainerStatuses[0]; now.ContainerID != restarts || now.RestartCount != 0 {
		t.Errorf("the container was started again: %s", kit.Describe(c.Pod("certified")))
	}
	// Requests go with their pods.
	c.Kubectl("delete", "pod", "certified", "refused", "--wait=false")
	c.Eventually("the requests are gone", func() (bool, string) {
		l, err := c.Client.CertificatesV1().PodCertificateRequests("").List(context.Background(), metav1.ListOptions{})
		return err == nil && len(l.Items) == 0, fmt.Sprint(err, len(l.Items))
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.problems) > 0 {
		t.Errorf("the signer was refused: %v", s.problems)
	}
}
