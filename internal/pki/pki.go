// Package pki makes and keeps the certificates and keys of a cluster: one
// CA for clients and the API server, one for the agents' servers, one
// for the front proxy, and the leaves that the parts of berth present to each
// other.
package pki

import (
	"bytes"
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
	"strings"
	"time"
)

const (
	caLife = 10 * 365 * 24 * time.Hour
	// DefaultLeafLife is how long a leaf is valid where nothing else is said.
	DefaultLeafLife = 365 * 24 * time.Hour
	// renewShare is the share of its life that a leaf has left when it is
	// replaced: 60 days of a year.
	renewShare = 6
	// backdate lets peers whose clock is a little behind accept a new
	// certificate.
	backdate = 5 * time.Minute
)

// CA signs leaves. Its key never leaves the process except to its file
// (mode 0600).
type CA struct {
	Cert     *x509.Certificate
	Key      crypto.Signer
	CertFile string
	KeyFile  string
	// LeafLife is how long its leaves are valid.
	LeafLife time.Duration
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

// LostError says that a CA of which certificates are in use is not there any more.
type LostError struct {
	Missing []string // files
	Because string   // what shows that they were there
}

func (e *LostError) Error() string {
	return fmt.Sprintf("%s: missing, but %s. A new CA would cut off every node and kubeconfig, so none is made: restore pki/ from a "+
		"backup, "+
		"or start with a new data directory", strings.Join(e.Missing, " and "), e.Because)
}

// EnsureCA loads the CA NAME.crt/NAME.key of dir, or makes it.
// used says what shows that the data directory is in use already; only if it
// is empty, neither file is there, and the CA signed nothing in dir, a
// new one is made: it would cut off every client of the old. A certificate
// that is not valid at now is an error that says which side the clock is on.
func EnsureCA(dir, name, used string, now time.Time) (*CA, error) {
	a := &CA{CertFile: filepath.Join(dir, name+".crt"), KeyFile: filepath.Join(dir, name+".key"), LeafLife: DefaultLeafLife}
	cert, key, err := load(a.CertFile, a.KeyFile)
	switch {
	case err == nil:
		if err := validAt(cert, now, a.CertFile); err != nil {
			return nil, err
		}
		a.Cert, a.Key = cert, key
		return a, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: a power loss or a full disk may have cut it short; restore it from a backup of pki/", err)
	}
	if err := a.mayMake(dir, name, used); err != nil {
		return nil, err
	}
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, fmt.Errorf("generating the key of CA %s: %w", name, err)
	}
	tmpl := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: issuer(name)},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(caLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing CA %s: %w", name, err)
	}
	if err := store(a.CertFile, a.KeyFile, der, key, WriteFile); err != nil {
		return nil, err
	}
	if a.Cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	a.Key = key
	return a, nil
}

// mayMake says why there must not be a new CA.
func (a *CA) mayMake(dir, name, used string) error {
	lost := &LostError{}
	for _, f := range []struct{ file, other string }{{a.CertFile, a.KeyFile}, {a.KeyFile, a.CertFile}} {
		if _, err := os.Stat(f.file); errors.Is(err, fs.ErrNotExist) {
			lost.Missing = append(lost.Missing, f.file)
		} else if err != nil {
			return fmt.Errorf("looking for CA %s: %w", name, err)
		} else {
			lost.Because = f.file + " is there"
		}
	}
	why := used
	if why == "" {
		why = a.signed(dir, name)
	}
	// A key alone in a new directory is what a first start left that ended
	// between the two files.
	if why == "" && slices.Contains(lost.Missing, a.CertFile) {
		return nil
	}
	if lost.Because == "" {
		lost.Because = why
	}
	return lost
}

// signed names a certificate in dir that a CA of this name signed.
func (a *CA) signed(dir, name string) string {
	files, err := filepath.Glob(filepath.Join(dir, "*.crt"))
	if err != nil {
		return "" // the pattern is well-formed
	}
	for _, f := range files {
		if cert, err := ReadCertificate(f); err == nil && !cert.IsCA && cert.Issuer.CommonName == issuer(name) {
			return f + " was signed by it"
		}
	}
	return ""
}

// issuer is the common name of a CA.
func issuer(name string) string { return "berth-" + name }

// EnsureLeaf keeps dir/NAME.crt and .key: an existing pair stays while it is
// signed by a, says what want says, and is not near its end; otherwise a new
// pair takes its place. It reports whether it wrote one.
func (a *CA) EnsureLeaf(dir, name string, want Leaf, now time.Time) (certFile, keyFile string, wrote bool, err error) {
	certFile, keyFile = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	if cert, _, err := load(certFile, keyFile); err == nil && a.fits(cert, want, now) {
		return certFile, keyFile, false, nil
	}
	cert, key, err := a.Issue(want, now)
	if err != nil {
		return "", "", false, fmt.Errorf("issuing certificate %s: %w", name, err)
	}
	// A leaf that a power loss cut off is made again, so no one waits for the disk.
	return certFile, keyFile, true, store(certFile, keyFile, cert.Raw, key, replace)
}

// WriteChain writes dir/NAME.chain.crt, the leaf dir/NAME.crt followed by its
// CA, and returns the file's name.
func WriteChain(dir, name string, a *CA) (string, error) {
	leaf, err := os.ReadFile(filepath.Join(dir, name+".crt"))
	if err != nil {
		return "", fmt.Errorf("reading certificate %s: %w", name, err)
	}
	file := filepath.Join(dir, name+".chain.crt")
	chain := append(leaf, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Cert.Raw})...)
	if have, err := os.ReadFile(file); err == nil && bytes.Equal(have, chain) {
		return file, nil
	}
	return file, replace(file, chain, 0o644)
}

// Issue makes a leaf without storing it.
func (a *CA) Issue(want Leaf, now time.Time) (*x509.Certificate, crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial(),
		Subject:      pkix.Name{CommonName: want.CommonName, Organization: want.Organization},
		NotBefore:    now.Add(-min(backdate, a.LeafLife/2)),
		NotAfter:     now.Add(a.LeafLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		DNSNames:     want.Names,
		IPAddresses:  want.IPs,
		ExtKeyUsage:  want.usages(),
	}
	if tmpl.NotBefore.Before(a.Cert.NotBefore) {
		tmpl.NotBefore = a.Cert.NotBefore
	}
	if tmpl.NotAfter.After(a.Cert.NotAfter) {
		tmpl.NotAfter = a.Cert.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.Cert, key.Public(), a.Key)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return cert, key, err
}

// RenewAt is when a leaf should be replaced: when a sixth of its life is left.
func RenewAt(cert *x509.Certificate) time.Time {
	return cert.NotAfter.Add(-cert.NotAfter.Sub(cert.NotBefore) / renewShare)
}

// fits says whether an existing certificate still does what want asks.
func (a *CA) fits(cert *x509.Certificate, want Leaf, now time.Time) bool {
	if cert.CheckSignatureFrom(a.Cert) != nil || now.Before(cert.NotBefore) || !now.Before(RenewAt(cert)) {
		return false
	}
	if cert.NotAfter.After(now.Add(a.LeafLife)) {
		return false // the life of leaves was made shorter
	}
	if cert.Subject.CommonName != want.CommonName || !slices.Equal(cert.Subject.Organization, want.Organization) {
		return false
	}
	sameIP := func(a, b net.IP) bool { return a.Equal(b) }
	return sameSet(cert.DNSNames, want.Names, func(a, b string) bool { return a == b }) &&
		sameSet(cert.IPAddresses, want.IPs, sameIP) &&
		sameSet(cert.ExtKeyUsage, want.usages(), func(a, b x509.ExtKeyUsage) bool { return a == b })
}

// sameSet says whether each element of one list is in the other. A leaf that
// says more than is wanted now, such as a server name that was given up, is
// none to keep.
func sameSet[T any](a, b []T, same func(T, T) bool) bool {
	within := func(in, of []T) bool {
		return !slices.ContainsFunc(in, func(x T) bool {
			return !slices.ContainsFunc(of, func(y T) bool { return same(x, y) })
		})
	}
	return within(a, b) && within(b, a)
}

// usages are the extended usages of a leaf.
func (l Leaf) usages() (out []x509.ExtKeyUsage) {
	if l.Server {
		out = append(out, x509.ExtKeyUsageServerAuth)
	}
	if l.Client {
		out = append(out, x509.ExtKeyUsageClientAuth)
	}
	return out
}

// EnsureKeyPair keeps a bare signing key (service account tokens): dir/NAME.key
// and its public half dir/NAME.pub.
func EnsureKeyPair(dir, name string) (keyFile, pubFile string, err error) {
	keyFile, pubFile = filepath.Join(dir, name+".key"), filepath.Join(dir, name+".pub")
	key, err := loadKey(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(pubFile); err == nil {
			return "", "", &LostError{Missing: []string{keyFile}, Because: pubFile + " is there, whose tokens are in use"}
		}
		fresh, gerr := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if gerr != nil {
			return "", "", fmt.Errorf("generating key %s: %w", name, gerr)
		}
		key, err = fresh, writeKey(keyFile, fresh, WriteFile)
	}
	if err != nil {
		return "", "", err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return "", "", fmt.Errorf("encoding %s: %w", pubFile, err)
	}
	return keyFile, pubFile, writePEM(pubFile, "PUBLIC KEY", der, 0o644, replace)
}

// validAt explains a certificate that the clock does not accept.
func validAt(cert *x509.Certificate, now time.Time, file string) error {
	switch {
	case now.Before(cert.NotBefore):
		return fmt.Errorf("certificate %s is not valid before %s but this machine's clock says %s: set the clock, or remove the data "+
			"directory if the certificates were made with a wrong clock",
			file, cert.NotBefore.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	case now.After(cert.NotAfter):
		return fmt.Errorf("certificate %s ended at %s and this machine's clock says %s: set the clock if it is wrong, otherwise start "+
			"with a new data directory",
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
	cert, err := ReadCertificate(certFile)
	if err != nil {
		return nil, nil, err
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

// ReadCertificate reads the first certificate of a PEM file.
func ReadCertificate(file string) (*x509.Certificate, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading certificate: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, fmt.Errorf("reading certificate %s (%d bytes): it holds no PEM CERTIFICATE block", file, len(data))
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("reading certificate %s: %w", file, err)
	}
	return cert, nil
}

func loadKey(file string) (crypto.Signer, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading key: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "EC PRIVATE KEY" {
		return nil, fmt.Errorf("reading key %s (%d bytes): it holds no PEM EC PRIVATE KEY block", file, len(data))
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("reading key %s: %w", file, err)
	}
	return key, nil
}

// store writes key before certificate, so that a crash between the two leaves
// a pair that does not load and is made again.
func store(certFile, keyFile string, der []byte, key crypto.Signer, write writer) error {
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return fmt.Errorf("writing key %s: only EC keys are kept, not %T", keyFile, key)
	}
	if err := writeKey(keyFile, ec, write); err != nil {
		return err
	}
	return writePEM(certFile, "CERTIFICATE", der, 0o644, write)
}

func writeKey(file string, key *ecdsa.PrivateKey, write writer) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("encoding key %s: %w", file, err)
	}
	return writePEM(file, "EC PRIVATE KEY", der, 0o600, write)
}

// writePEM writes one PEM block, in a directory that it makes.
func writePEM(file, kind string, der []byte, mode os.FileMode, write writer) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("making the certificate directory: %w", err)
	}
	return write(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode)
}

// writer is WriteFile or replace.
type writer func(file string, data []byte, mode os.FileMode) error

// WriteFile replaces file at once and for good: readers see the old or the new
// content, and so does a start after a power loss.
func WriteFile(file string, data []byte, mode os.FileMode) error {
	if err := swap(file, data, mode, (*os.File).Sync); err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(file)); err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	return nil
}

// replace is WriteFile for what is made again when it is lost.
func replace(file string, data []byte, mode os.FileMode) error {
	return swap(file, data, mode, func(*os.File) error { return nil })
}

func swap(file string, data []byte, mode os.FileMode, sync func(*os.File) error) error {
	tmp := file + ".new"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode) // it may have been there, with another one
	}
	if err == nil {
		err = sync(f)
	}
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = os.Rename(tmp, file)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
