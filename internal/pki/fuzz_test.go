package pki

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzPEM takes in any file in the place of a certificate or a key: an error
// that names the file, never a panic or a key that is none.
func FuzzPEM(f *testing.F) {
	dir := f.TempDir()
	if _, _, err := EnsureKeyPair(dir, "seed"); err != nil {
		f.Fatal(err)
	}
	for _, name := range []string{"seed.key", "seed.pub"} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
			f.Add(text)
		}
	}
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"))
	f.Add([]byte("-----BEGIN EC PRIVATE KEY-----\n-----END EC PRIVATE KEY-----\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		file := filepath.Join(dir, "any")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if cert, err := ReadCertificate(file); err == nil && cert == nil {
			t.Error("no certificate and no error")
		}
		if key, err := loadKey(file); err == nil && key.Public() == nil {
			t.Error("a key without a public half")
		}
		_, _, _ = load(file, file)
	})
}
