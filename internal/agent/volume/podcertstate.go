package volume

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	certificates "k8s.io/api/certificates/v1"

	"github.com/berth-dev/berth/internal/controller"
)

const (
	// certJitter spreads the refreshes of certificates that were issued together.
	certJitter = 5 * time.Minute
	// certOverdue is how long after its time a refresh is worth a warning.
	certOverdue = 10 * time.Minute
)

// certRetry are the pauses between requests that could not be made while the
// certificate of before is still there.
var certRetry = controller.Backoff{First: 10 * time.Second, Most: 5 * time.Minute}

// errNotIssued is why there is no certificate: the signer has not answered, or
// has refused.
var errNotIssued = errors.New("credential bundle is not issued")

// refusal is the last word of a signer.
type refusal struct{ verb, reason, message string }

func (r *refusal) Error() string {
	return fmt.Sprintf("PodCertificateRequest was permanently %s: reason=%q message=%q", r.verb, r.reason, r.message)
}
func (r *refusal) Is(target error) bool { return target == errNotIssued }

// credential is a key and the chain that was issued for it, both PEM.
type credential struct {
	key, chain          []byte
	refreshAt, notAfter time.Time
}

// asking is a request on its way, and the key it is for. made says that the API
// server has it.
type asking struct {
	name string
	key  []byte
	made bool
}

// certState is where one podCertificate source of a volume stands. At most one
// request is on its way; an answer that refuses is the last word for the pod.
//
//	nothing -> asked -> held -> held and asked -> held ...
//	             \-> refused        \-> held and refused
type certState struct {
	held    *credential
	asked   *asking
	refused error

	// failures counts requests that could not be made, in a row; retryAt is
	// when the next may be.
	failures int
	retryAt  time.Time
	// late and expired say that the pod's user got an event.
	late, expired bool
}

// certPlan is what to do about a source at some moment.
type certPlan struct {
	// ask says that a request must be made now, held that it is to replace a
	// certificate.
	ask, held bool
	// due is when to look again if nothing happens before; zero for never.
	due time.Time
	// reason and message are an event for the pod's user; empty for none.
	reason, message string
}

// plan says what to do at the time now.
func (s *certState) plan(now time.Time) certPlan {
	if s.held == nil {
		// Anyone who mounts tries again by itself, at its own pace.
		return certPlan{ask: s.asked == nil && s.refused == nil}
	}
	p := certPlan{held: true}
	lateAt := s.held.refreshAt.Add(certOverdue)
	switch {
	case !s.expired && !now.Before(s.held.notAfter):
		p.reason, p.message = "CertificateExpired", "PodCertificate expired"
	case !s.expired && !s.late && !now.Before(lateAt):
		p.reason, p.message = "CertificateOverdueForRefresh", "PodCertificate refresh overdue"
	}
	if s.asked == nil && s.refused == nil {
		at := s.held.refreshAt
		if s.retryAt.After(at) {
			at = s.retryAt
		}
		if p.ask = !now.Before(at); !p.ask {
			p.due = at
		}
	}
	for _, at := range []time.Time{lateAt, s.held.notAfter} {
		if at.After(now) {
			p.due = earliest(p.due, at)
		}
	}
	return p
}

// told notes that a plan's event was reported.
func (s *certState) told(reason string) {
	switch reason {
	case "CertificateExpired":
		s.expired = true
	case "CertificateOverdueForRefresh":
		s.late = true
	}
}

// ask notes a request that is about to be made.
func (s *certState) ask(name string, key []byte) { s.asked = &asking{name: name, key: key} }

// made notes that the API server has the request of that name.
func (s *certState) made(name string) {
	s.failures = 0
	if s.asked != nil && s.asked.name == name {
		s.asked.made = true
	}
}

// notMade notes that a request could not be made, and when to try again.
func (s *certState) notMade(now time.Time) {
	s.asked = nil
	s.failures++
	s.retryAt = now.Add(certRetry.Delay(s.failures))
}

// gone notes that a request was deleted before it was answered: another is due.
func (s *certState) gone(name string) (changed bool) {
	if s.asked == nil || s.asked.name != name {
		return false
	}
	s.asked = nil
	return true
}

// answer takes the state of a request and says whether that ended it; jitter
// is added to the time its certificate should be refreshed.
func (s *certState) answer(r *certificates.PodCertificateRequest, jitter time.Duration) (ended bool) {
	if s.asked == nil || s.asked.name != r.Name {
		return false
	}
	for _, c := range r.Status.Conditions {
		switch c.Type {
		case certificates.PodCertificateRequestConditionTypeDenied:
			s.refused = &refusal{"denied", c.Reason, c.Message}
		case certificates.PodCertificateRequestConditionTypeFailed:
			s.refused = &refusal{"failed", c.Reason, c.Message}
		case certificates.PodCertificateRequestConditionTypeIssued:
			if r.Status.BeginRefreshAt == nil || r.Status.NotAfter == nil {
				return false // not the whole answer
			}
			s.held = &credential{
				key: s.asked.key, chain: cleanChain(r.Status.CertificateChain),
				refreshAt: r.Status.BeginRefreshAt.Add(jitter), notAfter: r.Status.NotAfter.Time,
			}
			s.late, s.expired, s.retryAt = false, false, time.Time{}
		default:
			continue
		}
		s.asked = nil
		return true
	}
	return false
}

// cleanChain keeps the certificates of a chain and nothing between them.
func cleanChain(chain string) []byte {
	var out bytes.Buffer
	for rest := []byte(chain); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return out.Bytes()
		}
		out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes}))
	}
}
