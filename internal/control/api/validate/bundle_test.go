package validate_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"

	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// certificate returns a self-signed certificate, of a CA or not.
func certificate(t testing.TB, ca bool) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: ca, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func trusted(t testing.TB, signer string) *certificates.ClusterTrustBundle {
	return &certificates.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: strings.ReplaceAll(signer, "/", ":") + ":v1"},
		Spec:       certificates.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: certificate(t, true)},
	}
}

func TestTrustBundles(t *testing.T) {
	good := trusted(t, "example.com/one")
	for name, c := range map[string]struct {
		change func(b *certificates.ClusterTrustBundle)
		want   string
	}{
		"another signer's name": {func(b *certificates.ClusterTrustBundle) { b.Name = "else:v1" },
			"must be named with prefix example.com:one:"},
		"no signer, a prefix": {func(b *certificates.ClusterTrustBundle) { b.Spec.SignerName = "" }, "must not have"},
		"nothing":             {func(b *certificates.ClusterTrustBundle) { b.Spec.TrustBundle = "" }, "trust anchors are required"},
		"no certificate":      {func(b *certificates.ClusterTrustBundle) { b.Spec.TrustBundle = "words" }, "at least one certificate"},
		"twice":               {func(b *certificates.ClusterTrustBundle) { b.Spec.TrustBundle += b.Spec.TrustBundle }, "there twice"},
		"no authority": {func(b *certificates.ClusterTrustBundle) { b.Spec.TrustBundle = certificate(t, false) },
			"that of an authority"},
		"a key": {func(b *certificates.ClusterTrustBundle) {
			b.Spec.TrustBundle = "-----BEGIN KEY-----\n-----END KEY-----\n"
		}, "every block must be a CERTIFICATE"},
	} {
		t.Run(name, func(t *testing.T) {
			b := good.DeepCopy()
			c.change(b)
			if e := checkCreate(b); len(e) != 1 || !strings.Contains(e.ToAggregate().Error(), c.want) {
				t.Errorf("%v, want %q", e.ToAggregate(), c.want)
			}
		})
	}
	other := trusted(t, "example.com/two")
	other.Name, other.ResourceVersion = good.Name, "1"
	old := good.DeepCopy()
	old.ResourceVersion = "1"
	if e := checkUpdate(other, old); !strings.Contains(e.ToAggregate().Error(), "spec.signerName") {
		t.Errorf("the signer changed: %v", e.ToAggregate())
	}
}
