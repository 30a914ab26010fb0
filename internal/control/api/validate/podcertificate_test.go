package validate_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/control/api/validate"
)

// stub is a request that its key signed.
func stub(t testing.TB, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func newKey(t testing.TB, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// podRequest asks for a certificate of a key.
func podRequest(t testing.TB, key crypto.Signer) *certificates.PodCertificateRequest {
	t.Helper()
	day := int32(86400)
	return &certificates.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "r"},
		Spec: certificates.PodCertificateRequestSpec{
			SignerName: "example.com/one", PodName: "p", PodUID: "p-uid", ServiceAccountName: "sa", ServiceAccountUID: "sa-uid",
			NodeName: "n", NodeUID: "n-uid", MaxExpirationSeconds: &day, StubPKCS10Request: stub(t, key),
			UnverifiedUserAnnotations: map[string]string{"example.com/a": "b"},
		},
	}
}

func TestPodRequests(t *testing.T) {
	good := podRequest(t, newKey(t, elliptic.P256()))
	type request = certificates.PodCertificateRequest
	seconds := func(n int32) func(*request) { return func(r *request) { r.Spec.MaxExpirationSeconds = &n } }
	key := func(k crypto.Signer, err error) func(*request) {
		return func(r *request) {
			if err != nil {
				t.Fatal(err)
			}
			r.Spec.StubPKCS10Request = stub(t, k)
		}
	}
	_, ed, edErr := ed25519.GenerateKey(rand.Reader)
	rsaKey := func(bits int) func(*request) { k, err := rsa.GenerateKey(rand.Reader, bits); return key(k, err) }
	for name, c := range map[string]struct {
		change func(r *request)
		want   string
	}{
		"good":           {func(*request) {}, ""},
		"ed25519":        {key(ed, edErr), ""},
		"P384":           {key(newKey(t, elliptic.P384()), nil), ""},
		"P521":           {key(newKey(t, elliptic.P521()), nil), ""},
		"RSA 3072":       {rsaKey(3072), ""},
		"RSA 2048":       {rsaKey(2048), "RSA keys must have modulus size 3072 or 4096"},
		"P224":           {key(newKey(t, elliptic.P224()), nil), "elliptic public keys must use curve P256, P384, or P521"},
		"no request":     {func(r *request) { r.Spec.StubPKCS10Request = nil }, "spec.stubPKCS10Request: Invalid value"},
		"a long request": {func(r *request) { r.Spec.StubPKCS10Request = make([]byte, 10<<10+1) }, "spec.stubPKCS10Request: Too long"},
		"another's request": {func(r *request) { der := r.Spec.StubPKCS10Request; der[len(der)-1] ^= 1 },
			"could not verify the request's signature"},
		"no signer":         {func(r *request) { r.Spec.SignerName = "" }, "spec.signerName: Required value"},
		"a bare signer":     {func(r *request) { r.Spec.SignerName = "one" }, "spec.signerName: Invalid value"},
		"no pod":            {func(r *request) { r.Spec.PodName = "" }, "spec.podName: Invalid value"},
		"a bad account":     {func(r *request) { r.Spec.ServiceAccountName = "A" }, "spec.serviceAccountName: Invalid value"},
		"a bad node":        {func(r *request) { r.Spec.NodeName = "a/b" }, "spec.nodeName: Invalid value"},
		"no pod uid":        {func(r *request) { r.Spec.PodUID = "" }, "spec.podUID: Invalid value: \"\": must not be empty"},
		"a long node uid":   {func(r *request) { r.Spec.NodeUID = types.UID("x" + long) }, "spec.nodeUID: Too long"},
		"an hour":           {seconds(3600), ""},
		"less than an hour": {seconds(3599), "must be in the range [3600, 7862400]"},
		"91 days":           {seconds(7862400), ""},
		"more than 91 days": {seconds(7862401), "must be in the range [3600, 7862400]"},
		"kubernetes, a week": {func(r *request) { r.Spec.SignerName = "kubernetes.io/x"; seconds(604800)(r) },
			"must be in the range [3600, 86400]"},
		"no time": {func(r *request) { r.Spec.MaxExpirationSeconds = nil }, "spec.maxExpirationSeconds: Required value"},
		"a bare annotation": {func(r *request) { r.Spec.UnverifiedUserAnnotations = map[string]string{"a": "b"} },
			"spec.unverifiedUserAnnotations[a]: Invalid value"},
		"much to say": {func(r *request) {
			r.Spec.UnverifiedUserAnnotations = map[string]string{"example.com/a": strings.Repeat("x", 256<<10)}
		}, "spec.unverifiedUserAnnotations: Too long"},
	} {
		t.Run(name, func(t *testing.T) {
			r := good.DeepCopy()
			c.change(r)
			switch e := checkCreate(r); {
			case c.want == "" && len(e) > 0:
				t.Errorf("refused: %v", e.ToAggregate())
			case c.want != "" && (len(e) != 1 || !strings.Contains(e.ToAggregate().Error(), c.want)):
				t.Errorf("%v, want %q", e.ToAggregate(), c.want)
			}
		})
	}
	changed := good.DeepCopy()
	good.ResourceVersion, changed.ResourceVersion = "1", "1"
	changed.Spec.PodName = "other"
	if e := checkUpdate(changed, good); len(e) != 1 || !strings.Contains(e.ToAggregate().Error(), "field is immutable") {
		t.Errorf("the spec changed: %v", e.ToAggregate())
	}
}

var long = strings.Repeat("x", 128)

// answered signs what is asked; change has its way with the leaf.
func answered(t testing.TB, r *certificates.PodCertificateRequest, now time.Time, change func(leaf *x509.Certificate),
	public any) *certificates.PodCertificateRequest {
	t.Helper()
	key := newKey(t, elliptic.P256())
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: now, NotAfter: now.Add(2 * time.Hour)}
	if change != nil {
		change(leaf)
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, public, key)
	if err != nil {
		t.Fatal(err)
	}
	r = r.DeepCopy()
	notBefore, notAfter, refresh := metav1.NewTime(leaf.NotBefore), metav1.NewTime(leaf.NotAfter), metav1.NewTime(now.Add(time.Hour))
	r.Status = certificates.PodCertificateRequestStatus{
		CertificateChain: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		NotBefore:        &notBefore, NotAfter: &notAfter, BeginRefreshAt: &refresh,
		Conditions: []metav1.Condition{{Type: "Issued", Status: metav1.ConditionTrue, Reason: "Signed",
			LastTransitionTime: metav1.NewTime(now)}},
	}
	return r
}

func TestPodRequestAnswers(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	key := newKey(t, elliptic.P256())
	asked := podRequest(t, key)
	asked.ResourceVersion = "1"
	good := answered(t, asked, now, nil, key.Public())
	type request = certificates.PodCertificateRequest
	leaf := func(change func(*x509.Certificate)) func(*request) {
		return func(r *request) { r.Status = answered(t, asked, now, change, key.Public()).Status }
	}
	condition := func(kind string, status metav1.ConditionStatus, more ...metav1.Condition) func(*request) {
		return func(r *request) {
			r.Status = certificates.PodCertificateRequestStatus{Conditions: append([]metav1.Condition{
				{Type: kind, Status: status, Reason: "R", LastTransitionTime: metav1.NewTime(now)}}, more...)}
		}
	}
	at := func(p **metav1.Time, d time.Duration) { moved := metav1.NewTime((*p).Add(d)); *p = &moved }
	for name, c := range map[string]struct {
		change func(r *request)
		want   string
	}{
		"good":    {func(*request) {}, ""},
		"nothing": {func(r *request) { r.Status = certificates.PodCertificateRequestStatus{} }, ""},
		"denied":  {condition("Denied", metav1.ConditionTrue), ""},
		"failed":  {condition("Failed", metav1.ConditionTrue), ""},
		"two answers": {condition("Denied", metav1.ConditionTrue, metav1.Condition{Type: "Failed", Status: metav1.ConditionTrue,
			Reason: "R", LastTransitionTime: metav1.NewTime(now)}),
			`There may be at most one condition with type "Issued", "Denied", or "Failed"`},
		"not denied":          {condition("Denied", metav1.ConditionFalse), `status.conditions[0].status: Unsupported value: "False"`},
		"another word":        {condition("Approved", metav1.ConditionTrue), `status.conditions[0].type: Unsupported value: "Approved"`},
		"no reason":           {func(r *request) { r.Status.Conditions[0].Reason = "" }, "status.conditions[0].reason: Required value"},
		"denied with a chain": {func(r *request) { r.Status.Conditions[0].Type = "Denied" }, "non-condition status fields must be empty"},
		"no answer":           {func(r *request) { r.Status.Conditions = nil }, "may change only together with a condition"},
		"no chain":            {func(r *request) { r.Status.CertificateChain = "" }, "must contain at least one certificate"},
		"words":               {func(r *request) { r.Status.CertificateChain = "words" }, "must contain at least one certificate"},
		"a long chain": {func(r *request) { r.Status.CertificateChain = strings.Repeat("x", 100<<10+1) },
			"status.certificateChain: Too long"},
		"a key in the chain": {func(r *request) { r.Status.CertificateChain += "-----BEGIN KEY-----\n-----END KEY-----\n" },
			"must consist entirely of CERTIFICATE PEM blocks"},
		"a broken leaf": {func(r *request) { r.Status.CertificateChain = brokenBlock },
			"leaf certificate does not parse as valid X.509"},
		"a broken authority": {func(r *request) { r.Status.CertificateChain += brokenBlock },
			"intermediate certificate does not parse as valid X.509"},
		"for another key": {func(r *request) { r.Status = answered(t, asked, now, nil, newKey(t, elliptic.P256()).Public()).Status },
			"leaf certificate was not issued to the requested public key"},
		"a name with a dot": {leaf(func(c *x509.Certificate) { c.DNSNames = []string{"a.example."} }),
			"should not start or end with '.'"},
		"a name with dots": {leaf(func(c *x509.Certificate) { c.DNSNames = []string{"a..b"} }), "should not contain '..'"},
		"a bad address": {leaf(func(c *x509.Certificate) { c.EmailAddresses = []string{"nobody"} }),
			"should not contain invalid EmailAddress"},
		"no notBefore":      {func(r *request) { r.Status.NotBefore = nil }, "status.notBefore: Required value"},
		"no notAfter":       {func(r *request) { r.Status.NotAfter = nil }, "status.notAfter: Required value"},
		"no beginRefreshAt": {func(r *request) { r.Status.BeginRefreshAt = nil }, "status.beginRefreshAt: Required value"},
		"another notBefore": {func(r *request) { at(&r.Status.NotBefore, time.Second) },
			"must be set to the NotBefore time encoded in the leaf certificate"},
		"another notAfter": {func(r *request) { at(&r.Status.NotAfter, time.Second) },
			"must be set to the NotAfter time encoded in the leaf certificate"},
		"a short life": {leaf(func(c *x509.Certificate) { c.NotAfter = now.Add(59 * time.Minute) }),
			"leaf certificate lifetime must be >= 1 hour"},
		"a long life": {leaf(func(c *x509.Certificate) { c.NotAfter = now.Add(25 * time.Hour) }),
			"leaf certificate lifetime must be <= spec.maxExpirationSeconds (86400)"},
		"refreshed too soon": {func(r *request) { at(&r.Status.BeginRefreshAt, -51*time.Minute) },
			"must be at least 10 minutes after status.notBefore"},
		"refreshed too late": {func(r *request) { at(&r.Status.BeginRefreshAt, 51*time.Minute) },
			"must be at least 10 minutes before status.notAfter"},
		"an old certificate": {leaf(func(c *x509.Certificate) { c.NotBefore = now.Add(-5 * time.Minute) }),
			"must be set to within 5 minutes of kube-apiserver's current time"},
		"of tomorrow": {leaf(func(c *x509.Certificate) { c.NotBefore = now.Add(5 * time.Minute) }),
			"must be set to within 5 minutes of kube-apiserver's current time"},
		"a little in the past": {leaf(func(c *x509.Certificate) { c.NotBefore = now.Add(-4 * time.Minute) }), ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := good.DeepCopy()
			c.change(r)
			e := append(validate.PodCertificateRequestStatusUpdate(r, asked), validate.PodCertificateFresh(r, asked, now)...)
			switch {
			case c.want == "" && len(e) > 0:
				t.Errorf("refused: %v", e.ToAggregate())
			case c.want != "" && (len(e) == 0 || !strings.Contains(e.ToAggregate().Error(), c.want)):
				t.Errorf("%v, want %q", e.ToAggregate(), c.want)
			}
		})
	}
	// An answer is the last word, and stays good when it is old.
	later := now.Add(time.Hour)
	if e := append(validate.PodCertificateRequestStatusUpdate(good, good), validate.PodCertificateFresh(good, good, later)...); len(e) > 0 {
		t.Errorf("written back: %v", e.ToAggregate())
	}
	denied := asked.DeepCopy()
	condition("Denied", metav1.ConditionTrue)(denied)
	for _, c := range []struct{ changed, old *request }{{denied, good}, {good, denied}, {asked, good}} {
		if e := checkStatusUpdate(c.changed, c.old); len(e) != 1 || !strings.Contains(e.ToAggregate().Error(),
			"immutable after PodCertificateRequest is issued, denied, or failed") {
			t.Errorf("changed after the answer: %v", e.ToAggregate())
		}
	}
}

const brokenBlock = "-----BEGIN CERTIFICATE-----\nYQ==\n-----END CERTIFICATE-----\n"
