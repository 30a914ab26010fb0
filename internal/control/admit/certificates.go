package admit

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Names of the admission of certificate signing requests.
const (
	// CertificateApproval lets only those approve who may for that signer.
	CertificateApproval = "CertificateApproval"
	// Signing does the same for writing the certificate.
	CertificateSigning = "CertificateSigning"
	// PodSigning does so for answering a pod's request.
	PodCertificateSigning = "PodCertificateSigning"
	// Subject refuses client certificates for system:masters.
	CertificateSubjectRestriction = "CertificateSubjectRestriction"
)

// signerCheck asks for a verb on the request's signer when a subresource is
// written in a certain way.
type signerCheck struct {
	*admission.Handler
	name, subresource, verb, doing string
	// touches says whether a write does what the verb is for.
	touches    func(old, now *certificatesv1.CertificateSigningRequest) bool
	authorizer authorizer.UnconditionalAuthorizer
}

func newCertificateApproval(io.Reader) (admission.Interface, error) {
	return &signerCheck{
		Handler: admission.NewHandler(admission.Update), name: CertificateApproval, subresource: "approval", verb: "approve",
		doing:   "approve",
		touches: func(old, now *certificatesv1.CertificateSigningRequest) bool { return true },
	}, nil
}

func newCertificateSigning(io.Reader) (admission.Interface, error) {
	return &signerCheck{
		Handler: admission.NewHandler(admission.Update), name: CertificateSigning, subresource: "status", verb: "sign", doing: "sign",
		touches: func(old, now *certificatesv1.CertificateSigningRequest) bool {
			return !bytes.Equal(old.Status.Certificate, now.Status.Certificate) ||
				!equality.Semantic.DeepEqual(failures(old), failures(now))
		},
	}, nil
}

// podSigning lets only those answer a request for a pod's certificate who may
// sign for its signer: a denial ends the request as much as a certificate does.
type podSigning struct {
	*admission.Handler
	authorizer authorizer.UnconditionalAuthorizer
}

func newPodCertificateSigning(io.Reader) (admission.Interface, error) {
	return &podSigning{Handler: admission.NewHandler(admission.Update)}, nil
}

func (p *podSigning) SetUnconditionalAuthorizer(a authorizer.UnconditionalAuthorizer) {
	p.authorizer = a
}

func (p *podSigning) ValidateInitialization() error {
	if p.authorizer == nil {
		return fmt.Errorf("%s needs an authorizer", PodCertificateSigning)
	}
	return nil
}

func (p *podSigning) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "status" || a.GetResource().GroupResource() != podCertificates {
		return nil
	}
	now, ok := a.GetObject().(*certificatesv1.PodCertificateRequest)
	old, alsoOk := a.GetOldObject().(*certificatesv1.PodCertificateRequest)
	if !ok || !alsoOk {
		return admission.NewForbidden(a, fmt.Errorf("expected type PodCertificateRequest, got: %T", a.GetObject()))
	}
	who := a.GetUserInfo()
	if equality.Semantic.DeepEqual(old.Status, now.Status) || mayUseSigner(ctx, p.authorizer, who, "sign", old.Spec.SignerName) {
		return nil
	}
	return admission.NewForbidden(a, fmt.Errorf("User %q is not permitted to \"sign\" for signer %q", who.GetName(), old.Spec.SignerName))
}

func failures(csr *certificatesv1.CertificateSigningRequest) []certificatesv1.CertificateSigningRequestCondition {
	var failed []certificatesv1.CertificateSigningRequestCondition
	for _, c := range csr.Status.Conditions {
		if c.Type == certificatesv1.CertificateFailed {
			failed = append(failed, c)
		}
	}
	return failed
}

func (c *signerCheck) SetUnconditionalAuthorizer(a authorizer.UnconditionalAuthorizer) {
	c.authorizer = a
}

func (c *signerCheck) ValidateInitialization() error {
	if c.authorizer == nil {
		return fmt.Errorf("%s needs an authorizer", c.name)
	}
	return nil
}

func (c *signerCheck) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != c.subresource || a.GetResource().GroupResource() != certificateResource {
		return nil
	}
	now, ok := a.GetObject().(*certificatesv1.CertificateSigningRequest)
	old, alsoOk := a.GetOldObject().(*certificatesv1.CertificateSigningRequest)
	if !ok || !alsoOk {
		return admission.NewForbidden(a, fmt.Errorf("expected type CertificateSigningRequest, got: %T", a.GetObject()))
	}
	if !c.touches(old, now) || mayUseSigner(ctx, c.authorizer, a.GetUserInfo(), c.verb, old.Spec.SignerName) {
		return nil
	}
	return admission.NewForbidden(a, fmt.Errorf("user not permitted to %s requests with signerName %q", c.doing, old.Spec.SignerName))
}

// mayUseSigner asks for the verb on the signer by name, then on its whole
// domain ("example.com/*").
func mayUseSigner(ctx context.Context, a authorizer.UnconditionalAuthorizer, who user.Info, verb, signer string) bool {
	domain, _, _ := strings.Cut(signer, "/")
	for _, name := range []string{signer, domain + "/*"} {
		decision, _, _ := a.Authorize(ctx, authorizer.AttributesRecord{
			User: who, Verb: verb, Name: name, APIGroup: "certificates.k8s.io", APIVersion: "*", Resource: "signers", ResourceRequest: true,
		})
		if decision == authorizer.DecisionAllow {
			return true
		}
	}
	return false
}

// clientSigners are the signers whose certificates may name any group. What
// the kubelet signers accept allows system:nodes alone.
var clientSigners = []string{certificatesv1.KubeAPIServerClientSignerName, "kubernetes.io/legacy-unknown"}

type subject struct{ *admission.Handler }

func newCertificateSubjectRestriction(io.Reader) (admission.Interface, error) {
	return &subject{admission.NewHandler(admission.Create)}, nil
}

func (s *subject) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	csr, ok := a.GetObject().(*certificatesv1.CertificateSigningRequest)
	if !ok || !isFor(a, certificateResource) || !slices.Contains(clientSigners, csr.Spec.SignerName) {
		return nil
	}
	request, err := parseRequest(csr.Spec.Request)
	if err != nil {
		return admission.NewForbidden(a, fmt.Errorf("failed to parse CSR: %w", err))
	}
	if slices.Contains(request.Subject.Organization, user.SystemPrivilegedGroup) {
		return admission.NewForbidden(a, fmt.Errorf("use of %s signer with %s group is not allowed", csr.Spec.SignerName,
			user.SystemPrivilegedGroup))
	}
	return nil
}

func parseRequest(data []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("spec.request is not a PEM block of type CERTIFICATE REQUEST")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}
