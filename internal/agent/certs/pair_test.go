package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// writePair writes a new certificate of that lifetime with its key.
func writePair(t *testing.T, lifetime time.Duration, certFile, keyFile string) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if keyPEM, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		t.Fatal(err)
	}
	if certPEM, err = newSigner(t, lifetime).sign(key.Public(), pkix.Name{CommonName: "system:node:n1"}, nil); err != nil {
		t.Fatal(err)
	}
	// As a renewal does: the pair is never seen half written.
	for file, data := range map[string][]byte{keyFile: keyPEM, certFile: certPEM} {
		if err := os.WriteFile(file+".new", data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	return certPEM, keyPEM
}

func TestWatchedPairFollowsItsFiles(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "a.crt"), filepath.Join(dir, "a.key")
	if _, err := WatchPair("client", certFile, keyFile, func() {}); err == nil {
		t.Error("files that are not there were accepted")
	}
	writePair(t, time.Hour, certFile, keyFile)
	changed := make(chan struct{}, 10)
	pair, err := WatchPair("client", certFile, keyFile, func() { changed <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- pair.Run(t.Context()) }()
	first := pair.Current()
	writePair(t, time.Hour, certFile, keyFile)
	<-changed
	if second := pair.Current(); second.Leaf.SerialNumber.Cmp(first.Leaf.SerialNumber) == 0 {
		t.Error("a new pair was announced, and the old one is shown")
	}
}

// TestRotationPrefersAGoodCertificateToAnExpiredOne: a host was off for longer
// than its certificate lived, and its kubeconfig was renewed before the agent's
// next start.
func TestRotationPrefersAGoodCertificateToAnExpiredOne(t *testing.T) {
	for name, c := range map[string]struct {
		stored time.Duration
		fresh  bool // the kubeconfig's is used
	}{
		"expired": {-time.Minute, true},
		"good":    {time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			oldCert, oldKey := writePair(t, c.stored, filepath.Join(dir, "x"), filepath.Join(dir, "y"))
			store := filepath.Join(dir, clientPrefix+"-current.pem")
			if err := os.WriteFile(store, append(oldCert, oldKey...), 0o600); err != nil {
				t.Fatal(err)
			}
			given := &rest.Config{}
			given.CertData, given.KeyData = writePair(t, time.Hour, filepath.Join(dir, "x"), filepath.Join(dir, "y"))
			r, err := NewRotation(RotationConfig{Log: slog.New(slog.DiscardHandler), NodeName: "n1", CertDir: dir, Kubeconfig: given})
			if err != nil {
				t.Fatal(err)
			}
			want := given.CertData
			if !c.fresh {
				want = oldCert
			}
			leaf, err := certutil.ParseCertsPEM(want)
			if err != nil {
				t.Fatal(err)
			}
			if now := r.Current(); now == nil || now.Leaf.SerialNumber.Cmp(leaf[0].SerialNumber) != 0 {
				t.Errorf("in use is %+v, want serial number %s", now, leaf[0].SerialNumber)
			}
		})
	}
}
