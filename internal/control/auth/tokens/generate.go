package tokens

import (
	"crypto"
	"fmt"
	"time"

	jose "gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// claims is the payload of a service account token: the registered JWT claims
// beside one "kubernetes.io" claim.
type claims struct {
	jwt.Claims
	Kubernetes *bound `json:"kubernetes.io,omitempty"`
}

// bound says whom the token speaks for and whose end ends it.
type bound struct {
	Namespace      string           `json:"namespace,omitempty"`
	ServiceAccount ref              `json:"serviceaccount,omitempty"`
	Pod            *ref             `json:"pod,omitempty"`
	Secret         *ref             `json:"secret,omitempty"`
	Node           *ref             `json:"node,omitempty"`
	WarnAfter      *jwt.NumericDate `json:"warnafter,omitempty"`
}

type ref struct {
	Name string    `json:"name,omitempty"`
	UID  types.UID `json:"uid,omitempty"`
}

func refTo(name string, uid types.UID) *ref { return &ref{Name: name, UID: uid} }

// Binding is what a token is issued for. ServiceAccount is required; at most
// one of Pod and Secret may be set. Node alone binds the token to the node;
// beside Pod it only records where the pod runs.
type Binding struct {
	ServiceAccount *corev1.ServiceAccount
	Pod            *corev1.Pod
	Secret         *corev1.Secret
	Node           *corev1.Node
}

// Generator signs service account tokens. Safe for concurrent use.
type Generator struct {
	issuer string
	signer jose.Signer
}

// NewGenerator signs with the PEM private key in keyFile and writes issuer
// into every token.
func NewGenerator(issuer, keyFile string) (*Generator, error) {
	signer, err := loadSigner(keyFile)
	if err != nil {
		return nil, err
	}
	return &Generator{issuer: issuer, signer: signer}, nil
}

// newGeneratorFromKey is NewGenerator for a key already in memory.
func newGeneratorFromKey(issuer string, key crypto.Signer) (*Generator, error) {
	signer, err := newSigner(key)
	if err != nil {
		return nil, err
	}
	return &Generator{issuer: issuer, signer: signer}, nil
}

// Terms are a token's audiences and times. A zero WarnAfter leaves the claim
// out.
type Terms struct {
	Audiences                    []string
	IssuedAt, Expires, WarnAfter time.Time
}

// Generate signs one token and returns it with its unique ID (the jti claim).
func (g *Generator) Generate(to Binding, terms Terms) (token, id string, err error) {
	id = string(uuid.NewUUID())
	token, err = jwt.Signed(g.signer).Claims(claimsFor(g.issuer, id, to, terms)).CompactSerialize()
	if err != nil {
		return "", "", fmt.Errorf("signing a token for service account %s/%s: %w",
			to.ServiceAccount.Namespace, to.ServiceAccount.Name, err)
	}
	return token, id, nil
}

func claimsFor(issuer, id string, to Binding, terms Terms) *claims {
	sa := to.ServiceAccount
	c := &claims{
		Claims: jwt.Claims{
			Issuer:    issuer,
			Subject:   serviceaccount.MakeUsername(sa.Namespace, sa.Name),
			Audience:  terms.Audiences,
			IssuedAt:  jwt.NewNumericDate(terms.IssuedAt),
			NotBefore: jwt.NewNumericDate(terms.IssuedAt),
			Expiry:    jwt.NewNumericDate(terms.Expires),
			ID:        id,
		},
		Kubernetes: &bound{Namespace: sa.Namespace, ServiceAccount: ref{sa.Name, sa.UID}},
	}
	switch {
	case to.Pod != nil:
		c.Kubernetes.Pod = refTo(to.Pod.Name, to.Pod.UID)
	case to.Secret != nil:
		c.Kubernetes.Secret = refTo(to.Secret.Name, to.Secret.UID)
	}
	if to.Node != nil {
		c.Kubernetes.Node = refTo(to.Node.Name, to.Node.UID)
	} else if to.Pod != nil && to.Pod.Spec.NodeName != "" {
		// The node's object is gone or not seen yet: its name is still true.
		c.Kubernetes.Node = refTo(to.Pod.Spec.NodeName, "")
	}
	if !terms.WarnAfter.IsZero() {
		c.Kubernetes.WarnAfter = jwt.NewNumericDate(terms.WarnAfter)
	}
	return c
}

// ended says whether an object deleted at this time no longer vouches for a
// token. The margin covers clocks that differ and grace that is being used.
func ended(deleted *metav1.Time, now time.Time) bool {
	return deleted != nil && deleted.Add(deletionMargin).Before(now)
}

const deletionMargin = time.Minute
