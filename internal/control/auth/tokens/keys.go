// Package tokens issues and checks the bearer tokens of the cluster: service
// account tokens (signed, bound to objects) and bootstrap tokens (secrets in
// kube-system), and publishes the keys others check them with.
package tokens

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"

	jose "gopkg.in/go-jose/go-jose.v2"
	"k8s.io/client-go/util/keyutil"
)

// keySet holds the public keys that service account tokens are checked with,
// by key ID. It is immutable.
type keySet struct {
	byID map[string]publicKey
	ids  []string // in the order of the files, first occurrence
}

type publicKey struct {
	key crypto.PublicKey
	alg jose.SignatureAlgorithm
}

// LoadKeySet reads PEM files holding public keys, or private keys whose
// public half is used. Only RSA and ECDSA (P-256, P-384, P-521) keys work.
func LoadKeySet(files ...string) (*keySet, error) {
	var keys []crypto.PublicKey
	for _, file := range files {
		found, err := keyutil.PublicKeysFromFile(file)
		if err != nil {
			return nil, fmt.Errorf("reading service account public keys from %s: %w", file, err)
		}
		for _, key := range found {
			keys = append(keys, key)
		}
	}
	return newKeySet(keys...)
}

// newKeySet is LoadKeySet for keys already in memory.
func newKeySet(keys ...crypto.PublicKey) (*keySet, error) {
	set := &keySet{byID: map[string]publicKey{}}
	for _, key := range keys {
		alg, err := algorithmFor(key)
		if err != nil {
			return nil, err
		}
		id, err := keyID(key)
		if err != nil {
			return nil, err
		}
		if _, known := set.byID[id]; !known {
			set.byID[id] = publicKey{key, alg}
			set.ids = append(set.ids, id)
		}
	}
	if len(set.ids) == 0 {
		return nil, fmt.Errorf("loading service account public keys: none given")
	}
	return set, nil
}

func algorithmFor(key crypto.PublicKey) (jose.SignatureAlgorithm, error) {
	switch k := key.(type) {
	case *rsa.PublicKey:
		return jose.RS256, nil
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256():
			return jose.ES256, nil
		case elliptic.P384():
			return jose.ES384, nil
		case elliptic.P521():
			return jose.ES512, nil
		}
		return "", fmt.Errorf("using a service account key: curve %s is not one of P-256, P-384, P-521", k.Curve.Params().Name)
	}
	return "", fmt.Errorf("using a service account key: type %T is neither RSA nor ECDSA", key)
}

// keyID derives the key's ID from the key itself, so that every server given
// the same file agrees on it.
func keyID(key crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("encoding a service account public key: %w", err)
	}
	sum := sha256.Sum256(der)
	return base64.RawURLEncoding.EncodeToString(sum[:]), nil
}

// candidates returns the keys a token with this key ID may be signed with:
// the named one, or every key when the token names none.
func (s *keySet) candidates(id string) []publicKey {
	if id != "" {
		if key, known := s.byID[id]; known {
			return []publicKey{key}
		}
		return nil
	}
	var all []publicKey
	for _, id := range s.ids {
		all = append(all, s.byID[id])
	}
	return all
}

// JWKS is the key set as a JSON Web Key Set document.
func (s *keySet) JWKS() ([]byte, error) {
	doc := jose.JSONWebKeySet{}
	for _, id := range s.ids {
		key := s.byID[id]
		doc.Keys = append(doc.Keys, jose.JSONWebKey{Key: key.key, KeyID: id, Algorithm: string(key.alg), Use: "sig"})
	}
	out, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("encoding the service account key set: %w", err)
	}
	return out, nil
}

func (s *keySet) algorithms() []string {
	var out []string
	for _, id := range s.ids {
		out = append(out, string(s.byID[id].alg))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// loadSigner reads a PEM private key and returns what signs with it.
func loadSigner(file string) (jose.Signer, error) {
	key, err := keyutil.PrivateKeyFromFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the service account signing key from %s: %w", file, err)
	}
	private, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("reading the service account signing key from %s: type %T cannot sign", file, key)
	}
	return newSigner(private)
}

func newSigner(private crypto.Signer) (jose.Signer, error) {
	alg, err := algorithmFor(private.Public())
	if err != nil {
		return nil, err
	}
	id, err := keyID(private.Public())
	if err != nil {
		return nil, err
	}
	signer, err := jose.NewSigner(jose.SigningKey{
		Algorithm: alg,
		Key:       jose.JSONWebKey{Key: private, KeyID: id, Algorithm: string(alg), Use: "sig"},
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("preparing the service account signing key: %w", err)
	}
	return signer, nil
}
