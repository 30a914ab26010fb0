package certificate

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	authv1 "k8s.io/api/authorization/v1"
	certv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
)

// watch runs a sync for every request that changes. Requests are few: the
// controllers share one cache.
func watch(ctx context.Context, e controller.Env, workers int, sync func(context.Context, *certv1.CertificateSigningRequest) (time.Duration,
	error)) error {
	inf := e.Informers.Certificates().V1().CertificateSigningRequests()
	q := controller.NewQueue()
	seen, err := controller.On(ctx, inf.Informer(), func(_, r *certv1.CertificateSigningRequest, _ bool) { q.Add(r.Name) })
	if err != nil {
		return err
	}
	if err := e.Synced(ctx, seen); err != nil {
		return nil
	}
	return e.Run(ctx, q, workers, controller.Existing(inf.Informer().GetIndexer(), sync))
}

func has(csr *certv1.CertificateSigningRequest, types ...certv1.RequestConditionType) bool {
	for _, c := range csr.Status.Conditions {
		for _, t := range types {
			if c.Type == t {
				return true
			}
		}
	}
	return false
}

// RunApprover approves nodes' requests until the context ends.
func RunApprover(ctx context.Context, e controller.Env, rules ServingRules) error {
	return watch(ctx, e, 4, func(ctx context.Context, csr *certv1.CertificateSigningRequest) (time.Duration, error) {
		if len(csr.Status.Certificate) > 0 || has(csr, certv1.CertificateApproved, certv1.CertificateDenied) {
			return 0, nil
		}
		req, err := parse(csr)
		if err != nil {
			return 0, nil //nolint:nilerr // nothing of a node's: the signer will say what is wrong
		}
		ask := recognize(csr, req)
		if ask == NotOurs || ask == NodeServing && rules.Manual {
			return 0, nil
		}
		fact, wait, err := decideApproval(ctx, e, csr, req, ask, rules)
		if err != nil || wait > 0 {
			return wait, err
		}
		e.Note("CertificateSigningRequest", csr, "approved", fact)
		return 0, approve(ctx, e, csr, ask)
	})
}

// decideApproval says why a request may be approved; an error or a time to look
// again if it may not (yet).
func decideApproval(ctx context.Context, e controller.Env, csr *certv1.CertificateSigningRequest, req *x509.CertificateRequest, ask ask,
	rules ServingRules) (
	journal.Fact, time.Duration, error,
) {
	name := strings.TrimPrefix(req.Subject.CommonName, nodePrefix)
	if ask == NodeServing {
		if err := judgeServing(ctx, e, csr, req, name, rules); err != nil {
			return journal.Fact{}, 0, fmt.Errorf("request %s waits for approval: %w", csr.Name, err)
		}
		return journal.Fact{Name: "names", Value: fmt.Sprintf("%v %v are the Node's", req.DNSNames, req.IPAddresses)}, 0, nil
	}
	ok, err := allowed(ctx, e, csr, ask)
	if err != nil {
		return journal.Fact{}, 0, err
	}
	if !ok {
		return journal.Fact{}, 0, fmt.Errorf("request %s waits for approval: %s may not create certificatesigningrequests/%s", csr.Name,
			csr.Spec.Username, ask)
	}
	if ask == NodeClient {
		until, err := aliveUntil(ctx, e, name, time.Now())
		if err != nil {
			return journal.Fact{}, 0, err
		}
		if wait := time.Until(until); wait > 0 {
			e.Log.Warn("a request for the name of a node that is alive waits for approval: it is approved when the node's Lease ends; "+
				"delete the Node, or approve it by hand (kubectl certificate approve)", "request", csr.Name, "node", name, "by",
				csr.Spec.Username, "until", until)
			return journal.Fact{}, wait, nil
		}
	}
	return journal.Fact{Name: "allowed", Value: csr.Spec.Username + " may create certificatesigningrequests/" + string(ask)}, 0, nil
}

// judgeServing binds the node to what it asks for, if that is right.
func judgeServing(ctx context.Context, e controller.Env, csr *certv1.CertificateSigningRequest, req *x509.CertificateRequest, name string,
	rules ServingRules) error {
	node, bound, others, err := situation(ctx, e, name)
	if err != nil {
		return err
	}
	if node == nil {
		return fmt.Errorf("there is no Node %s", name)
	}
	if err := servingMatches(req, node); err != nil {
		return err
	}
	asked := asked(name, req)
	if err := rules.Refuse(asked, bound.host, others); err != nil {
		return err
	}
	if err := proven(asked, source(csr), bound.host); err != nil {
		return err
	}
	return bind(ctx, e, node, bound, asked)
}

// approve writes the approval. Its subresource takes conditions only, guarded by version.
func approve(ctx context.Context, e controller.Env, csr *certv1.CertificateSigningRequest, ask ask) error {
	csr = csr.DeepCopy()
	csr.Status.Conditions = append(csr.Status.Conditions, certv1.CertificateSigningRequestCondition{Type: certv1.CertificateApproved,
		Status: v1.ConditionTrue, Reason: "AutoApproved", Message: messages[ask], LastUpdateTime: metav1.Now()})
	_, err := e.Client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("approving request %s: %w", csr.Name, err)
	}
	return nil
}

func allowed(ctx context.Context, e controller.Env, csr *certv1.CertificateSigningRequest, ask ask) (bool, error) {
	extra := map[string]authv1.ExtraValue{}
	for k, v := range csr.Spec.Extra {
		extra[k] = authv1.ExtraValue(v)
	}
	sar, err := e.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx,
		&authv1.SubjectAccessReview{Spec: authv1.SubjectAccessReviewSpec{
			User: csr.Spec.Username, UID: csr.Spec.UID, Groups: csr.Spec.Groups, Extra: extra,
			ResourceAttributes: &authv1.ResourceAttributes{Group: "certificates.k8s.io", Resource: "certificatesigningrequests",
				Verb:        "create",
				Subresource: string(ask), Version: "*"},
		}}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("asking whether %s may have request %s approved: %w", csr.Spec.Username, csr.Name, err)
	}
	return sar.Status.Allowed, nil
}

// RunSigner signs approved requests until the context ends: those for agents'
// serving certificates with serving, all others with ca.
func RunSigner(ctx context.Context, e controller.Env, ca, serving *CA, rules ServingRules) error {
	return watch(ctx, e, 4, func(ctx context.Context, csr *certv1.CertificateSigningRequest) (time.Duration, error) {
		if len(csr.Status.Certificate) > 0 || !has(csr, certv1.CertificateApproved) || has(csr, certv1.CertificateDenied,
			certv1.CertificateFailed) {
			return 0, nil
		}
		req, known, refused := checkRequest(csr)
		if !known {
			return 0, nil
		}
		by := ca
		if csr.Spec.SignerName == certv1.KubeletServingSignerName && refused == nil {
			by = serving
			var err error
			if refused, err = refuseServing(ctx, e, req, rules); err != nil {
				return 0, fmt.Errorf("request %s: %w", csr.Name, err)
			}
		}
		status := map[string]any{}
		if refused != nil {
			status["conditions"] = append(slices.Clone(csr.Status.Conditions), failed(refused))
		} else {
			cert, err := by.Sign(csr, req, time.Now())
			if err != nil {
				return 0, fmt.Errorf("request %s: %w", csr.Name, err)
			}
			status["certificate"] = cert
			e.Note("CertificateSigningRequest", csr, "signed", journal.Fact{Name: "signer", Value: csr.Spec.SignerName})
		}
		_, err := kube.Patch(ctx, e.Client.CertificatesV1().CertificateSigningRequests(), csr, kube.Unchanged,
			kube.Change{Status: status, Subresource: "status"})
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("writing the certificate of request %s: %w", csr.Name, err)
		}
		return 0, nil
	})
}

// remade is the remedy of whom the signer refused: a request cannot be changed.
const remade = "; make a new CertificateSigningRequest whose spec.request and spec.usages the signer takes"

func failed(why error) certv1.CertificateSigningRequestCondition {
	now := metav1.Now()
	return certv1.CertificateSigningRequestCondition{Type: certv1.CertificateFailed, Status: v1.ConditionTrue,
		Reason: "SignerValidationFailed", Message: why.Error() + remade, LastUpdateTime: now, LastTransitionTime: now}
}

// refuseServing says what the signer does not sign for an agent even if a
// person approved it, and binds the node to what it signs.
func refuseServing(ctx context.Context, e controller.Env, req *x509.CertificateRequest, rules ServingRules) (refused, err error) {
	name := strings.TrimPrefix(req.Subject.CommonName, nodePrefix)
	node, bound, others, err := situation(ctx, e, name)
	if err != nil {
		return nil, err
	}
	asked := asked(name, req)
	if refused := rules.Refuse(asked, bound.host, others); refused != nil || node == nil {
		return refused, nil
	}
	return nil, bind(ctx, e, node, bound, asked)
}

// How long requests are kept, by what became of them.
const (
	keepPending = 24 * time.Hour
	keepDone    = time.Hour
)

// expires says when a request is of no more use: an hour after it was decided,
// a day after it was made if no one did, or when its certificate has expired.
func expires(csr *certv1.CertificateSigningRequest) time.Time {
	at := csr.CreationTimestamp.Add(keepPending)
	for _, c := range csr.Status.Conditions {
		done := (c.Type == certv1.CertificateApproved && len(csr.Status.Certificate) > 0) || c.Type == certv1.CertificateDenied ||
			c.Type == certv1.CertificateFailed
		if t := c.LastUpdateTime.Add(keepDone); done && t.Before(at) {
			at = t
		}
	}
	return at
}

// RunCleaner deletes requests that are of no more use until the context ends.
func RunCleaner(ctx context.Context, e controller.Env) error {
	return watch(ctx, e, 1, func(ctx context.Context, csr *certv1.CertificateSigningRequest) (time.Duration, error) {
		if left := time.Until(expires(csr)); left > 0 {
			return left, nil
		}
		err := e.Client.CertificatesV1().CertificateSigningRequests().Delete(ctx, csr.Name, kube.SameUID(csr))
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("deleting request %s: %w", csr.Name, err)
		}
		return 0, nil
	})
}
