package volume

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	certificates "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clocktesting "k8s.io/utils/clock/testing"
)

// testSigner answers requests as a signer would: with a chain of a leaf and its
// CA.
type testSigner struct {
	key  crypto.Signer
	cert *x509.Certificate
	der  []byte
}

func newSigner(t *testing.T) *testSigner {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Unix(1<<32, 0)}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &testSigner{key, cert, der}
}

func (s *testSigner) issue(t *testing.T, r *certificates.PodCertificateRequest, now time.Time) *certificates.PodCertificateRequest {
	t.Helper()
	request, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	if err == nil {
		err = request.CheckSignature()
	}
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: now, NotAfter: now.Add(2 * time.Hour), DNSNames: []string{r.Name}}
	der, err := x509.CreateCertificate(rand.Reader, leaf, s.cert, request.PublicKey, s.key)
	if err != nil {
		t.Fatal(err)
	}
	r = r.DeepCopy()
	refresh, notAfter := metav1.NewTime(now.Add(time.Hour)), metav1.NewTime(leaf.NotAfter)
	block := func(der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Headers: map[string]string{"a": "b"}, Bytes: der}))
	}
	r.Status = certificates.PodCertificateRequestStatus{
		CertificateChain: "leaf\n" + block(der) + "authority\n" + block(s.der), BeginRefreshAt: &refresh, NotAfter: &notAfter,
		Conditions: []metav1.Condition{{Type: "Issued", Status: metav1.ConditionTrue, Reason: "Issued"}},
	}
	return r
}

// certRig is a manager with a fake API, on a clock that tests step.
type certRig struct {
	*Manager
	t      *testing.T
	c      *cluster
	clock  *clocktesting.FakeClock
	events *events
	woken  chan types.UID
	asked  watch.Interface
	signer *testSigner
}

func newCertRig(t *testing.T, root string) *certRig {
	t.Helper()
	r := &certRig{t: t, clock: clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0)), events: &events{}, woken: make(chan types.UID, 100),
		signer: newSigner(t)}
	r.c = newCluster(t, false, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "sa", UID: "sa-uid"}})
	r.Manager = newTestManager(t, Config{
		RootDir: root, Client: r.c, NodeName: "n1", Clock: r.clock, Event: r.events.add, Wake: func(uid types.UID) { r.woken <- uid },
		Node: func() *v1.Node { return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node-uid"}} },
	})
	r.certs.jitter = func() time.Duration { return 0 }
	var err error
	if r.asked, err = r.c.CertificatesV1().PodCertificateRequests("").Watch(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	return r
}

// request is the next request that is made.
func (r *certRig) request() *certificates.PodCertificateRequest {
	r.t.Helper()
	for {
		select {
		case ev := <-r.asked.ResultChan():
			if ev.Type == watch.Added {
				return ev.Object.(*certificates.PodCertificateRequest)
			}
		case <-time.After(30 * time.Second):
			r.t.Fatal("no request was made")
		}
	}
}

// answer stores a status once the manager's own watch is there to see it.
func (r *certRig) answer(p *certificates.PodCertificateRequest) {
	r.t.Helper()
	waitWatch(r.t, r.c, "podcertificaterequests//spec.nodeName=n1")
	if _, err := r.c.CertificatesV1().PodCertificateRequests(p.Namespace).UpdateStatus(context.Background(), p,
		metav1.UpdateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *certRig) refused(p *certificates.PodCertificateRequest, condition, reason, message string) {
	p = p.DeepCopy()
	p.Status.Conditions = []metav1.Condition{{Type: condition, Status: metav1.ConditionTrue, Reason: reason, Message: message}}
	r.answer(p)
}

func (r *certRig) wake() {
	r.t.Helper()
	select {
	case <-r.woken:
	case <-time.After(30 * time.Second):
		r.t.Fatal("the pod was never woken")
	}
}

// mountFails mounts a pod that is not ready, and wants the reason.
func (r *certRig) mountFails(pod *v1.Pod, want string) {
	r.t.Helper()
	if _, err := r.Mount(context.Background(), pod); err == nil || !strings.Contains(err.Error(), want) {
		r.t.Fatalf("mounted: %v, want %q", err, want)
	}
}

func certVolume(kind string, change ...func(*v1.PodCertificateProjection)) v1.Volume {
	p := &v1.PodCertificateProjection{SignerName: "example.com/one", KeyType: kind, CredentialBundlePath: "bundle.pem",
		KeyPath: "tls/key.pem", CertificateChainPath: "tls/chain.pem"}
	for _, f := range change {
		f(p)
	}
	return v1.Volume{Name: "cert",
		VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{{PodCertificate: p}}}}}
}

// pairOf reads the files of a volume, which must belong together.
func pairOf(t *testing.T, dir string) tls.Certificate {
	t.Helper()
	key, chain, bundle := readFile(t, dir, "tls/key.pem"), readFile(t, dir, "tls/chain.pem"), readFile(t, dir, "bundle.pem")
	if bundle != key+chain {
		t.Error("the bundle is not the key and the chain")
	}
	if strings.Contains(chain, "authority") || strings.Contains(chain, "a: b") {
		t.Errorf("what is between the certificates was kept:\n%s", chain)
	}
	pair, err := tls.X509KeyPair([]byte(bundle), []byte(bundle))
	if err != nil {
		t.Fatal(err)
	}
	if len(pair.Certificate) != 2 {
		t.Errorf("a chain of %d", len(pair.Certificate))
	}
	return pair
}

func TestPodCertificates(t *testing.T) {
	needRoot(t)
	r := newCertRig(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = r.Run(ctx) }()
	seconds := int32(7200)
	pod := testPod("a", certVolume("ECDSAP256", func(p *v1.PodCertificateProjection) {
		p.MaxExpirationSeconds, p.UserAnnotations = &seconds, map[string]string{"example.com/a": "b"}
	}))
	r.mountFails(pod, `waits for signer "example.com/one"`)
	r.mountFails(pod, "credential bundle is not issued yet")
	first := r.request()
	want := certificates.PodCertificateRequestSpec{
		SignerName: "example.com/one", PodName: "pod-a", PodUID: "a", ServiceAccountName: "sa", ServiceAccountUID: "sa-uid",
		NodeName: "n1", NodeUID: "node-uid", MaxExpirationSeconds: &seconds, StubPKCS10Request: first.Spec.StubPKCS10Request,
		UnverifiedUserAnnotations: map[string]string{"example.com/a": "b"},
	}
	if got := first.Spec; got.String() != want.String() || first.Namespace != "ns" || first.OwnerReferences[0].UID != "a" {
		t.Errorf("asked %v\nwant %v", first, want)
	}
	r.answer(r.signer.issue(t, first, r.clock.Now()))
	r.wake()
	dir := mustMount(t, r.Manager, pod)["cert"].HostPath
	before := pairOf(t, dir)
	if info, err := os.Stat(filepath.Join(dir, "bundle.pem")); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v %v", info.Mode(), err)
	}

	// At its time, and not before, another is asked for; the old one stays
	// until the new one is there, whole.
	changed := make(chan struct{})
	watchDir(t, dir, func() bool { return readFile(t, dir, "bundle.pem") != readBundle(before) }, changed)
	step(t, r.clock, time.Hour)
	second := r.request()
	if got := pairOf(t, dir); !slices.EqualFunc(got.Certificate, before.Certificate, slices.Equal[[]byte]) {
		t.Error("the certificate went before the next was there")
	}
	r.answer(r.signer.issue(t, second, r.clock.Now()))
	<-changed
	after := pairOf(t, dir)
	if after.Leaf.DNSNames[0] != second.Name {
		t.Errorf("holds the certificate of %v, want %s", after.Leaf.DNSNames, second.Name)
	}

	// A refused refresh leaves the certificate and tells why.
	step(t, r.clock, time.Hour)
	third := r.request()
	r.refused(third, "Denied", "Tired", "no more")
	until(t, func() bool {
		return strings.Contains(r.events.text(), `Warning Denied PodCertificateRequest ns/`+third.Name+`: reason="Tired" message="no more"`)
	})
	if pairOf(t, mustMount(t, r.Manager, pod)["cert"].HostPath).Leaf.DNSNames[0] != second.Name {
		t.Error("a refused refresh changed the certificate")
	}
	mustUnmount(t, r.Manager, "a")
	if len(r.certs.states) != 0 || len(r.certs.pods) != 0 {
		t.Errorf("kept %v of a pod that is gone", r.certs.states)
	}
}

// readBundle writes a pair as its bundle file would.
func readBundle(pair tls.Certificate) string {
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		panic(err)
	}
	out := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	for _, c := range pair.Certificate {
		out += string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c}))
	}
	return out
}

// step moves the clock once someone waits for it.
func step(t *testing.T, clk *clocktesting.FakeClock, d time.Duration) {
	t.Helper()
	until(t, clk.HasWaiters)
	clk.Step(d)
}

// until asks until it is so, bounded.
func until(t *testing.T, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range 30_000 {
		if cond() {
			return
		}
		<-tick.C
	}
	t.Fatal("it never came about")
}

func TestRefusedPodCertificates(t *testing.T) {
	needRoot(t)
	for condition, verb := range map[string]string{"Denied": "denied", "Failed": "failed"} {
		t.Run(condition, func(t *testing.T) {
			r := newCertRig(t, "")
			pod := testPod("a", certVolume("ED25519"))
			r.mountFails(pod, "not issued yet")
			r.refused(r.request(), condition, "UnsupportedKeyType", "use RSA3072")
			r.wake()
			want := "PodCertificateRequest was permanently " + verb + `: reason="UnsupportedKeyType" message="use RSA3072"`
			r.mountFails(pod, want)
			if !strings.Contains(r.events.text(), `Warning FailedMount MountVolume.SetUp failed for volume "cert" : `+want) {
				t.Errorf("events:\n%s", r.events.text())
			}
			mustUnmount(t, r.Manager, "a")
		})
	}
}

// A request that is deleted before it is answered is made again.
func TestDeletedPodCertificateRequest(t *testing.T) {
	needRoot(t)
	r := newCertRig(t, "")
	pod := testPod("a", certVolume("ECDSAP384"))
	r.mountFails(pod, "not issued yet")
	first := r.request()
	waitWatch(t, r.c, "podcertificaterequests//spec.nodeName=n1")
	if err := r.c.CertificatesV1().PodCertificateRequests("ns").Delete(t.Context(), first.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.wake()
	r.mountFails(pod, "not issued yet")
	if second := r.request(); second.Name == first.Name {
		t.Error("the same request again")
	}
	mustUnmount(t, r.Manager, "a")
}

// An agent that starts again has no key: the pod goes on with what its volume
// holds until there is another certificate.
func TestPodCertificateAfterRestart(t *testing.T) {
	needRoot(t)
	root := t.TempDir()
	pod := testPod("a", certVolume("ECDSAP521"))
	r := newCertRig(t, root)
	r.mountFails(pod, "not issued yet")
	r.answer(r.signer.issue(t, r.request(), r.clock.Now()))
	r.wake()
	dir := mustMount(t, r.Manager, pod)["cert"].HostPath
	before := pairOf(t, dir)
	r.Close()

	r = newCertRig(t, root)
	if got := mustMount(t, r.Manager, pod)["cert"].HostPath; got != dir || readFile(t, dir, "bundle.pem") != readBundle(before) {
		t.Error("the volume of a running pod changed while its signer was asked anew")
	}
	changed := make(chan struct{})
	watchDir(t, dir, func() bool { return readFile(t, dir, "bundle.pem") != readBundle(before) }, changed)
	next := r.request()
	r.answer(r.signer.issue(t, next, r.clock.Now()))
	<-changed
	if got := pairOf(t, dir); got.Leaf.DNSNames[0] != next.Name {
		t.Errorf("holds %v, want %s", got.Leaf.DNSNames, next.Name)
	}
	mustUnmount(t, r.Manager, "a")
}

// Only the pod's own user reads its key.
func TestPodCertificateModes(t *testing.T) {
	needRoot(t)
	r := newCertRig(t, "")
	pod := testPod("a", certVolume("ECDSAP256"))
	user := int64(1234)
	pod.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: &user}
	r.mountFails(pod, "not issued yet")
	r.answer(r.signer.issue(t, r.request(), r.clock.Now()))
	r.wake()
	dir := mustMount(t, r.Manager, pod)["cert"].HostPath
	for _, name := range []string{"bundle.pem", "tls/key.pem", "tls/chain.pem"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 || owner(info) != 1234 {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
	}
	mustUnmount(t, r.Manager, "a")
}

func keyName(key any) string {
	switch k := key.(type) {
	case *rsa.PublicKey:
		return fmt.Sprint("RSA ", k.Size())
	case *ecdsa.PublicKey:
		return "ECDSA " + k.Params().Name
	case ed25519.PublicKey:
		return "Ed25519"
	}
	return fmt.Sprintf("%T", key)
}

func TestPodKeys(t *testing.T) {
	for kind, want := range map[string]string{
		"RSA3072": "RSA 384", "RSA4096": "RSA 512", "ECDSAP256": "ECDSA P-256", "ECDSAP384": "ECDSA P-384", "ECDSAP521": "ECDSA P-521",
		"ED25519": "Ed25519",
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			key, der, err := newPodKey(kind)
			if err != nil {
				t.Fatal(err)
			}
			request, err := x509.ParseCertificateRequest(der)
			if err == nil {
				err = request.CheckSignature()
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := keyName(request.PublicKey); got != want {
				t.Errorf("asked for a key of %s, want %s", got, want)
			}
			block, rest := pem.Decode(key)
			if block == nil || block.Type != "PRIVATE KEY" || len(rest) > 0 {
				t.Fatalf("the key is %s", key)
			}
			private, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			if pub := private.(crypto.Signer).Public(); !pub.(interface{ Equal(crypto.PublicKey) bool }).Equal(request.PublicKey) {
				t.Error("the request is for another key")
			}
			if request.Subject.String() != "" || len(request.Extensions) > 0 {
				t.Errorf("the request says more than its key: %v", request.Subject)
			}
		})
	}
	if _, _, err := newPodKey("DSA"); err == nil {
		t.Error("a key of an unknown type was made")
	}
}
