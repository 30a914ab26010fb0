package volume

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
)

// newPodKey makes a key of a kind that podCertificate sources know: the key as
// PKCS#8 in PEM, and an empty PKCS#10 request in DER that the key signed.
func newPodKey(kind string) (keyPEM, request []byte, err error) {
	var key crypto.Signer
	switch kind {
	case "RSA3072":
		key, err = rsa.GenerateKey(rand.Reader, 3072)
	case "RSA4096":
		key, err = rsa.GenerateKey(rand.Reader, 4096)
	case "ECDSAP256":
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ECDSAP384":
		key, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ECDSAP521":
		key, err = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ED25519":
		_, key, err = ed25519.GenerateKey(rand.Reader)
	default:
		return nil, nil, fmt.Errorf("unknown key type %q: use RSA3072, RSA4096, ECDSAP256, ECDSAP384, ECDSAP521 or ED25519", kind)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("making a key of type %s: %w", kind, err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("writing a key of type %s: %w", kind, err)
	}
	request, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, nil, fmt.Errorf("signing a request with a key of type %s: %w", kind, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), request, nil
}
