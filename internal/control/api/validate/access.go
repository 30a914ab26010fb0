package validate

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"

	certificates "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var isPathSegment = isName(pathvalidation.ValidatePathSegmentName)

func policyRules(p *field.Path, rules []rbac.PolicyRule, namespacedRole bool) errs {
	var all errs
	for i := range rules {
		at, r := p.Index(i), &rules[i]
		if len(r.Verbs) == 0 {
			all = append(all, field.Required(at.Child("verbs"), "verbs must contain at least one value"))
		}
		if len(r.NonResourceURLs) > 0 {
			if namespacedRole {
				all = append(all, field.Invalid(at.Child("nonResourceURLs"), r.NonResourceURLs,
					"namespaced rules cannot apply to non-resource URLs"))
			}
			if len(r.APIGroups)+len(r.Resources)+len(r.ResourceNames) > 0 {
				all = append(all, field.Invalid(at.Child("nonResourceURLs"), r.NonResourceURLs,
					"rules cannot apply to both regular resources and non-resource URLs"))
			}
			continue
		}
		if len(r.APIGroups) == 0 {
			all = append(all, field.Required(at.Child("apiGroups"), "resource rules must supply at least one api group"))
		}
		if len(r.Resources) == 0 {
			all = append(all, field.Required(at.Child("resources"), "resource rules must supply at least one resource"))
		}
	}
	return all
}

func Role(r *rbac.Role) errs { return policyRules(field.NewPath("rules"), r.Rules, true) }

func ClusterRole(r *rbac.ClusterRole) errs {
	all := policyRules(field.NewPath("rules"), r.Rules, false)
	if r.AggregationRule == nil {
		return all
	}
	at := field.NewPath("aggregationRule", "clusterRoleSelectors")
	if len(r.AggregationRule.ClusterRoleSelectors) == 0 {
		return append(all, field.Required(at, "at least one clusterRoleSelector required if aggregationRule is non-nil"))
	}
	for i := range r.AggregationRule.ClusterRoleSelectors {
		all = append(all, selector(at.Index(i), &r.AggregationRule.ClusterRoleSelectors[i])...)
	}
	return all
}

func RoleBinding(b *rbac.RoleBinding) errs {
	return append(roleRef(b.RoleRef, "Role", "ClusterRole"), subjects(b.Subjects, true)...)
}

func ClusterRoleBinding(b *rbac.ClusterRoleBinding) errs {
	return append(roleRef(b.RoleRef, "ClusterRole"), subjects(b.Subjects, false)...)
}

func roleRef(r rbac.RoleRef, kinds ...string) errs {
	p := field.NewPath("roleRef")
	all := oneOf(p.Child("apiGroup"), r.APIGroup, rbac.GroupName)
	all = append(all, oneOf(p.Child("kind"), r.Kind, kinds...)...)
	return append(all, named(p.Child("name"), r.Name, isPathSegment)...)
}

func sameRole(changed, old rbac.RoleRef) errs {
	if changed == old {
		return nil
	}
	return errs{field.Invalid(field.NewPath("roleRef"), changed, "cannot change roleRef")}
}

func subjects(list []rbac.Subject, inNamespace bool) errs {
	var all errs
	for i, s := range list {
		at := field.NewPath("subjects").Index(i)
		all = append(all, present(at.Child("name"), s.Name)...)
		switch s.Kind {
		case rbac.ServiceAccountKind:
			if s.Name != "" {
				all = append(all, invalid(at.Child("name"), s.Name, isSubdomain(s.Name))...)
			}
			if s.APIGroup != "" {
				all = append(all, field.NotSupported(at.Child("apiGroup"), s.APIGroup, []string{""}))
			}
			if !inNamespace && s.Namespace == "" {
				all = append(all, field.Required(at.Child("namespace"), ""))
			}
		case rbac.UserKind, rbac.GroupKind:
			all = append(all, oneOf(at.Child("apiGroup"), s.APIGroup, rbac.GroupName)...)
		default:
			all = append(all, field.NotSupported(at.Child("kind"), s.Kind, []string{rbac.ServiceAccountKind, rbac.UserKind,
				rbac.GroupKind}))
		}
	}
	return all
}

// minCertificateSeconds is the shortest life of a certificate that can be asked
// for.
const minCertificateSeconds = 600

// legacyUnknown is the signer of requests that named none, in versions of the
// API that are gone; it looks at nothing.
const legacyUnknown = "kubernetes.io/legacy-unknown"

func CertificateSigningRequest(c *certificates.CertificateSigningRequest) errs {
	s := &c.Spec
	var all errs
	at := specPath.Child("request")
	if block, rest := pem.Decode(s.Request); block == nil || block.Type != "CERTIFICATE REQUEST" {
		all = append(all, field.Invalid(at, s.Request, "PEM block type must be CERTIFICATE REQUEST"))
	} else if request, err := x509.ParseCertificateRequest(block.Bytes); err != nil {
		all = append(all, field.Invalid(at, s.Request, fmt.Sprintf("%v", err)))
	} else if len(rest) > 0 {
		all = append(all, field.Invalid(at, s.Request, "must contain a single PEM block"))
	} else if err := request.CheckSignature(); err != nil {
		// Who asks must hold the key: else someone's public key could be had certified.
		all = append(all, field.Invalid(at, s.Request, fmt.Sprintf("%v", err)))
	}
	if len(s.Usages) == 0 {
		all = append(all, field.Required(specPath.Child("usages"), "usages are required"))
	}
	known := []certificates.KeyUsage{certificates.UsageSigning, certificates.UsageDigitalSignature, certificates.UsageContentCommitment,
		certificates.UsageKeyEncipherment, certificates.UsageKeyAgreement, certificates.UsageDataEncipherment, certificates.UsageCertSign,
		certificates.UsageCRLSign, certificates.UsageEncipherOnly, certificates.UsageDecipherOnly, certificates.UsageAny,
		certificates.UsageServerAuth, certificates.UsageClientAuth, certificates.UsageCodeSigning, certificates.UsageEmailProtection,
		certificates.UsageSMIME, certificates.UsageIPsecEndSystem, certificates.UsageIPsecTunnel, certificates.UsageIPsecUser,
		certificates.UsageTimestamping, certificates.UsageOCSPSigning, certificates.UsageMicrosoftSGC, certificates.UsageNetscapeSGC}
	usages := unique[certificates.KeyUsage]{}
	for i, u := range s.Usages {
		all = append(all, oneOf(specPath.Child("usages").Index(i), u, known...)...)
		all = append(all, usages.add(specPath.Child("usages").Index(i), u)...)
	}
	all = append(all, signerName(specPath.Child("signerName"), s.SignerName)...)
	if s.SignerName == legacyUnknown {
		all = append(all, field.Invalid(specPath.Child("signerName"), s.SignerName,
			"the legacy signerName is not allowed via this API version"))
	}
	if e := s.ExpirationSeconds; e != nil && *e < minCertificateSeconds {
		all = append(all, field.Invalid(specPath.Child("expirationSeconds"), *e,
			fmt.Sprintf("may not specify a duration less than %d seconds (10 minutes)", minCertificateSeconds)))
	}
	return append(all, csrConditions(c.Status.Conditions)...)
}

func csrConditions(list []certificates.CertificateSigningRequestCondition) errs {
	at := field.NewPath("status", "conditions")
	var all errs
	seen := map[certificates.RequestConditionType]bool{}
	for i, c := range list {
		one := at.Index(i)
		all = append(all, present(one.Child("type"), string(c.Type))...)
		all = append(all, mustBeOneOf(one.Child("status"), c.Status, v1.ConditionTrue, v1.ConditionFalse, v1.ConditionUnknown)...)
		switch c.Type {
		case certificates.CertificateApproved, certificates.CertificateDenied, certificates.CertificateFailed:
			if c.Status != v1.ConditionTrue && c.Status != "" {
				all = append(all, field.NotSupported(one.Child("status"), c.Status, []v1.ConditionStatus{v1.ConditionTrue}))
			}
		}
		if seen[c.Type] {
			all = append(all, field.Duplicate(one.Child("type"), c.Type))
		}
		seen[c.Type] = true
	}
	if seen[certificates.CertificateApproved] && seen[certificates.CertificateDenied] {
		all = append(all, field.Invalid(at, certificates.CertificateDenied, "Approved and Denied conditions are mutually exclusive"))
	}
	return all
}

// csrKept wants the decisions of before to be there still.
func csrKept(changed, old *certificates.CertificateSigningRequest) errs {
	var all errs
	for _, kind := range []certificates.RequestConditionType{certificates.CertificateApproved, certificates.CertificateDenied,
		certificates.CertificateFailed} {
		has := func(c certificates.CertificateSigningRequestCondition) bool { return c.Type == kind }
		if slices.ContainsFunc(old.Status.Conditions, has) && !slices.ContainsFunc(changed.Status.Conditions, has) {
			all = append(all, field.Forbidden(field.NewPath("status", "conditions"),
				fmt.Sprintf("updates may not remove a condition of type %q", kind)))
		}
	}
	return all
}

// CertificateSigningRequestUpdate: what was asked for does not change.
func CertificateSigningRequestUpdate(changed, old *certificates.CertificateSigningRequest) errs {
	return append(immutable(specPath, changed.Spec, old.Spec), csrKept(changed, old)...)
}

// CertificateSigningRequestStatusUpdate lets a signer put the certificate,
// once, or say that it failed.
func CertificateSigningRequestStatusUpdate(changed, old *certificates.CertificateSigningRequest) errs {
	all := append(csrConditions(changed.Status.Conditions), csrKept(changed, old)...)
	at := field.NewPath("status", "certificate")
	if len(old.Status.Certificate) > 0 {
		all = append(all, immutable(at, changed.Status.Certificate, old.Status.Certificate)...)
	}
	if len(changed.Status.Certificate) == 0 {
		return all
	}
	for rest := changed.Status.Certificate; ; {
		block, after := pem.Decode(rest)
		if block == nil {
			if len(rest) == len(changed.Status.Certificate) {
				all = append(all, field.Invalid(at, "<certificate data>", "must contain at least one CERTIFICATE PEM block"))
			}
			return all
		}
		if block.Type != "CERTIFICATE" {
			return append(all, field.Invalid(at, "<certificate data>", fmt.Sprintf("only CERTIFICATE PEM blocks are allowed, found %q",
				block.Type)))
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return append(all, field.Invalid(at, "<certificate data>", err.Error()))
		}
		rest = after
	}
}

// CSRApproval checks a change through the approval subresource: conditions
// only, and no decision taken back.
func CSRApproval(changed, old *certificates.CertificateSigningRequest) field.ErrorList {
	all := append(ObjectMetaUpdate(changed, old), csrConditions(changed.Status.Conditions)...)
	all = append(all, csrKept(changed, old)...)
	return append(all, immutable(field.NewPath("status", "certificate"), changed.Status.Certificate, old.Status.Certificate)...)
}

func RoleBindingUpdate(changed, old *rbac.RoleBinding) errs {
	return append(RoleBinding(changed), sameRole(changed.RoleRef, old.RoleRef)...)
}

func ClusterRoleBindingUpdate(changed, old *rbac.ClusterRoleBinding) errs {
	return append(ClusterRoleBinding(changed), sameRole(changed.RoleRef, old.RoleRef)...)
}
