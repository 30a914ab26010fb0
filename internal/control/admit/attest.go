package admit

import (
	"context"
	"fmt"
	"io"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// ClusterTrustBundleAttest lets only those say what a signer's trust anchors
// are who may for that signer.
const ClusterTrustBundleAttest = "ClusterTrustBundleAttest"

type attest struct {
	*admission.Handler
	authorizer authorizer.UnconditionalAuthorizer
}

func newClusterTrustBundleAttest(io.Reader) (admission.Interface, error) {
	return &attest{Handler: admission.NewHandler(admission.Create, admission.Update)}, nil
}

func (c *attest) SetUnconditionalAuthorizer(a authorizer.UnconditionalAuthorizer) { c.authorizer = a }

func (c *attest) ValidateInitialization() error {
	if c.authorizer == nil {
		return fmt.Errorf("%s needs an authorizer", ClusterTrustBundleAttest)
	}
	return nil
}

func (c *attest) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" || a.GetResource().GroupResource() != bundleResource {
		return nil
	}
	now, ok := a.GetObject().(*certificatesv1.ClusterTrustBundle)
	if !ok {
		return admission.NewForbidden(a, fmt.Errorf("expected type ClusterTrustBundle, got: %T", a.GetObject()))
	}
	if s := now.Spec.SignerName; s != "" && !mayUseSigner(ctx, c.authorizer, a.GetUserInfo(), "attest", s) {
		return admission.NewForbidden(a, fmt.Errorf("user not permitted to attest for signerName %q", s))
	}
	return nil
}
