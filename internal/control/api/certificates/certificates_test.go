package certificates_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

func pemRequest(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:n", Organization: []string{"system:nodes"}},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// TestPartsAreSeparate checks that each endpoint changes its own part of a
// request and no other.
func TestPartsAreSeparate(t *testing.T) {
	ctx := context.Background()
	env := apitest.StartEnv(t)
	requests := kubernetes.NewForConfigOrDie(env.Config).CertificatesV1().CertificateSigningRequests()
	csr, err := requests.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "r"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pemRequest(t), SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages:   []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature},
			Username: "forged", Groups: []string{"system:masters-forged"},
		},
		Status: certificatesv1.CertificateSigningRequestStatus{Certificate: []byte("forged")},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if csr.Spec.Username != "admin" || len(csr.Spec.Groups) == 0 || csr.Spec.Groups[0] == "system:masters-forged" ||
		len(csr.Status.Certificate) > 0 {
		t.Errorf("new request is %+v", csr)
	}
	approved := certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateApproved, Status: v1.ConditionTrue,
		Reason: "Test"}
	csr.Spec.Usages = nil
	csr.Status.Conditions = append(csr.Status.Conditions, approved)
	if csr, err = requests.Update(ctx, csr, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if len(csr.Spec.Usages) != 2 || len(csr.Status.Conditions) > 0 {
		t.Errorf("the main resource changed %+v", csr)
	}
	csr.Status.Conditions = append(csr.Status.Conditions, approved)
	if csr, err = requests.UpdateStatus(ctx, csr, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if len(csr.Status.Conditions) > 0 {
		t.Errorf("a status write approved the request: %+v", csr.Status)
	}
	csr.Status.Conditions = append(csr.Status.Conditions, approved)
	csr.Status.Certificate = []byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
	if csr, err = requests.UpdateApproval(ctx, "r", csr, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if len(csr.Status.Conditions) != 1 || csr.Status.Conditions[0].LastUpdateTime.IsZero() ||
		csr.Status.Conditions[0].LastTransitionTime.IsZero() || len(csr.Status.Certificate) > 0 {
		t.Errorf("after approval: %+v", csr.Status)
	}
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateFailed,
		Status: v1.ConditionTrue, Reason: "Test"}}
	if csr, err = requests.UpdateStatus(ctx, csr, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if len(csr.Status.Conditions) != 2 {
		t.Errorf("after failing, the approval is lost: %+v", csr.Status)
	}
	// Anyone who adds a condition finds it where it was put.
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: "StatusUpdate",
		Status: v1.ConditionTrue, Reason: "Test"})
	want := fmt.Sprint(types(csr))
	if csr, err = requests.UpdateStatus(ctx, csr, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(types(csr)); got != want {
		t.Errorf("conditions %s became %s", want, got)
	}
	list, err := requests.List(ctx, metav1.ListOptions{FieldSelector: "spec.signerName=" + csr.Spec.SignerName})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("by signer: %v, %v", list, err)
	}
}

func types(csr *certificatesv1.CertificateSigningRequest) (out []certificatesv1.RequestConditionType) {
	for _, c := range csr.Status.Conditions {
		out = append(out, c.Type)
	}
	return out
}
