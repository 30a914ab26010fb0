// Package pki makes and keeps the certificates and keys of a cluster: one
// authority for clients and servers, one for the front proxy, and the leaves
// that the parts of berth present to each other.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	leafLife      = 365 * 24 * time.Hour
	// renewBefore is how long before its end a leaf is replaced at start.
	renewBefore = 60 * 24 * time.Hour
	// backdate lets peers whose clock is a little behind accept a new
	// certificate.
	backdate = 5 * time.Minute
)

// Authority signs leaves. Its key never leaves the process except to its file
// (mode 0600).
type Authority struct {
	Cert     *x509.Certificate
	Key      crypto.Signer
	CertFile string
	KeyFile  string
}

// Leaf says what a certificate is for. Names and IPs make a serving
// certificate, Organization and CommonName the identity of a client.
type Leaf struct {
	CommonName   string
	Organization []string
	Names        []string
	IPs          []net.IP
	Server       bool
	Client       bool
}

// EnsureAuthority loads the authority NAME.crt/NAME.key of dir, or makes it.
// A certificate that is not valid at now is an error that says which side the
// clock is on: an authority is never replaced silently, since that would cut
// off every client.
func EnsureAuthority(dir, name string, now time.Time) (*Authority, error) {
	a := &Authority{CertFile: filepath.Join(dir, name+".crt"), KeyFile: filepath.Join(dir, name+".key")}
	cert, key, err := load(a.CertFile, a.KeyFile)
	switch {
	case err == nil:
		if err := validAt(cert, now, a.CertFile); err != nil {
			return nil, err
		}
		a.Cert, a.Key = cert, key
		return a, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, fmt.Errorf("generating the key of authority %s: %w", name, err)
	}
	tmpl := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: "berth-" + name},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(authorityLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing authority %s: %w", name, err)
	}
	if err := store(a.CertFile, a.KeyFile, der, key); err != nil {
		return nil, err
	}
	if a.Cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	a.Key = key
	return a, nil
}

// EnsureLeaf keeps dir/NAME.crt and .key: an existing pair stays while it is
// signed by a, says what want says, and is not near its end; otherwise a new
// pair takes its place. It reports whether it wrote one.
func (a *Authority) EnsureLeaf(dir, name string, want Leaf, now time.Time) (certFile, keyFile string, wrote bool, err error) {
	certFile, keyFile = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	if cert, _, err := load(certFile, keyFile); err == nil && a.fits(cert, want, now) {
		return certFile, keyFile, false, nil
	}
	cert, key, err := a.Issue(want, now)
	if err != nil {
		return "", "", false, fmt.Errorf("issuing certificate %s: %w", name, err)
	}
	return certFile, keyFile, true, store(certFile, keyFile, cert.Raw, key)
}

// WriteChain writes dir/NAME.chain.crt, the leaf dir/NAME.crt followed by its
// authority, and returns the file's name.
func WriteChain(dir, name string, a *Authority) (string, error) {
	leaf, err := os.ReadFile(filepath.Join(dir, name+".crt"))
	if err != nil {
		return "", fmt.Errorf("reading certificate %s: %w", name, err)
	}
	file := filepath.Join(dir, name+".chain.crt")
	chain := append(leaf, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Cert.Raw})...)
	if err := os.WriteFile(file+".new", chain, 0o644); err != nil {
		return "", fmt.Errorf("writing certificate chain %s: %w", name, err)
	}
	return file, os.Rename(file+".new", file)
}

// Issue makes a leaf without storing it.
func (a *Authority) Issue(want Leaf, now time.Time) (*x509.Certificate, crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial(),
		Subject:      pkix.Name{CommonName: want.CommonName, Organization: want.Organization},
		NotBefore:    now.Add(-backdate),
		NotAfter:     now.Add(leafLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		DNSNames:     want.Names,
		IPAddresses:  want.IPs,
	}
	if tmpl.NotBefore.Before(a.Cert.NotBefore) {
		tmpl.NotBefore = a.Cert.NotBefore
	}
	if want.Server {
		tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if want.Client {
		tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.Cert, key.Public(), a.Key)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return cert, key, err
}

// fits says whether an existing certificate still does what want asks.
func (a *Authority) fits(cert *x509.Certificate, want Leaf, now time.Time) bool {
	if cert.CheckSignatureFrom(a.Cert) != nil || now.Before(cert.NotBefore) || now.Add(renewBefore).After(cert.NotAfter) {
		return false
	}
	if cert.Subject.CommonName != want.CommonName || !slices.Equal(cert.Subject.Organization, want.Organization) {
		return false
	}
	for _, n := range want.Names {
		if !slices.Contains(cert.DNSNames, n) {
			return false
		}
	}
	for _, ip := range want.IPs {
		if !slices.ContainsFunc(cert.IPAddresses, ip.Equal) {
			return false
		}
	}
	return true
}

// EnsureKeyPair keeps a bare signing key (service account tokens): dir/NAME.key
// and its public half dir/NAME.pub.
func EnsureKeyPair(dir, name string) (keyFile, pubFile string, err error) {
	keyFile, pubFile = filepath.Join(dir, name+".key"), filepath.Join(dir, name+".pub")
	key, err := loadKey(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		fresh, gerr := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if gerr != nil {
			return "", "", fmt.Errorf("generating key %s: %w", name, gerr)
		}
		key, err = fresh, writeKey(keyFile, fresh)
	}
	if err != nil {
		return "", "", err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return "", "", fmt.Errorf("encoding %s: %w", pubFile, err)
	}
	return keyFile, pubFile, writePEM(pubFile, "PUBLIC KEY", der, 0o644)
}

// validAt explains a certificate that the clock does not accept.
func validAt(cert *x509.Certificate, now time.Time, file string) error {
	switch {
	case now.Before(cert.NotBefore):
		return fmt.Errorf("certificate %s is not valid before %s but this machine's clock says %s: set the clock, or remove the data directory if the certificates were made with a wrong clock",
			file, cert.NotBefore.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	case now.After(cert.NotAfter):
		return fmt.Errorf("certificate %s ended at %s and this machine's clock says %s: set the clock if it is wrong, otherwise start with a new data directory",
			file, cert.NotAfter.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return nil
}

func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		// crypto/rand does not fail on Linux; a predictable serial would be
		// worse than stopping.
		panic(fmt.Sprintf("reading random bytes: %v", err))
	}
	return n
}

func load(certFile, keyFile string) (*x509.Certificate, crypto.Signer, error) {
	data, err := os.ReadFile(certFile)
	if err != nil {
		return nil, nil, fmt.Errorf("reading certificate: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, nil, fmt.Errorf("reading certificate %s: it holds no PEM CERTIFICATE block", certFile)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("reading certificate %s: %w", certFile, err)
	}
	key, err := loadKey(keyFile)
	if err != nil {
		return nil, nil, err
	}
	if pub, ok := key.Public().(*ecdsa.PublicKey); !ok || !pub.Equal(cert.PublicKey) {
		return nil, nil, fmt.Errorf("key %s does not belong to certificate %s", keyFile, certFile)
	}
	return cert, key, nil
}

func loadKey(file string) (crypto.Signer, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading key: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "EC PRIVATE KEY" {
		return nil, fmt.Errorf("reading key %s: it holds no PEM EC PRIVATE KEY block", file)
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("reading key %s: %w", file, err)
	}
	return key, nil
}

// store writes key before certificate, so that a crash between the two leaves
// a pair that does not load and is made again.
func store(certFile, keyFile string, der []byte, key crypto.Signer) error {
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return fmt.Errorf("writing key %s: only EC keys are kept, not %T", keyFile, key)
	}
	if err := writeKey(keyFile, ec); err != nil {
		return err
	}
	return writePEM(certFile, "CERTIFICATE", der, 0o644)
}

func writeKey(file string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("encoding key %s: %w", file, err)
	}
	return writePEM(file, "EC PRIVATE KEY", der, 0o600)
}

// writePEM replaces file at once: readers see the old or the new content.
func writePEM(file, kind string, der []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("making the certificate directory: %w", err)
	}
	tmp := file + ".new"
	if err := os.WriteFile(tmp, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode); err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	if err := os.Rename(tmp, file); err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	return nil
}
