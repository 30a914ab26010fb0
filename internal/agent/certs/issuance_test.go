package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"testing"
	"time"
)

// memoryStore is a store of certificates without files.
type memoryStore struct {
	have *tls.Certificate
	fail error
}

func (m *memoryStore) Current() (*tls.Certificate, error) {
	if m.have == nil {
		return nil, errors.New("none")
	}
	return m.have, nil
}

func (m *memoryStore) Update([]byte, []byte) (*tls.Certificate, error) {
	if m.fail != nil {
		return nil, m.fail
	}
	m.have = &tls.Certificate{Leaf: &x509.Certificate{NotAfter: time.Now().Add(time.Hour)}}
	return m.have, nil
}

// TestIssuanceTellsOfTheFirstCertificate: done is closed by a valid
// certificate, found or issued, and by nothing else.
func TestIssuanceTellsOfTheFirstCertificate(t *testing.T) {
	cert := func(until time.Duration) *tls.Certificate {
		return &tls.Certificate{Leaf: &x509.Certificate{NotAfter: time.Now().Add(until)}}
	}
	closed := func(i *issuance) bool {
		select {
		case <-i.done:
			return true
		default:
			return false
		}
	}
	for name, c := range map[string]struct {
		store *memoryStore
		found bool
	}{
		"nothing":     {&memoryStore{}, false},
		"an old one":  {&memoryStore{have: cert(-time.Hour)}, false},
		"a valid one": {&memoryStore{have: cert(time.Hour)}, true},
	} {
		i := newIssuance(c.store)
		if closed(i) != c.found {
			t.Errorf("%s in the store: closed %v, want %v", name, closed(i), c.found)
		}
		c.store.fail = errors.New("disk full")
		if _, err := i.Update(nil, nil); err == nil || closed(i) != c.found {
			t.Errorf("%s and a failed write: closed %v, error %v", name, closed(i), err)
		}
		c.store.fail = nil
		for range 2 {
			if _, err := i.Update(nil, nil); err != nil || !closed(i) {
				t.Errorf("%s and a new one: closed %v, error %v", name, closed(i), err)
			}
		}
	}
}
