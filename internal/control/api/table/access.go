package table

import (
	"strings"
	"time"

	admission "k8s.io/api/admissionregistration/v1"
	certificates "k8s.io/api/certificates/v1"
	flow "k8s.io/api/flowcontrol/v1"
	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

var CertificateSigningRequest = of(func(now time.Time, c *certificates.CertificateSigningRequest) []any {
	asked := none
	if c.Spec.ExpirationSeconds != nil {
		asked = duration.HumanDuration(time.Duration(*c.Spec.ExpirationSeconds) * time.Second)
	}
	return []any{c.Name, created(now, c), c.Spec.SignerName, c.Spec.Username, asked, csrCondition(c)}
}, nameColumn, ageColumn,
	text("SignerName", certificates.CertificateSigningRequestSpec{}.SwaggerDoc()["signerName"]),
	text("Requestor", certificates.CertificateSigningRequestSpec{}.SwaggerDoc()["username"]),
	text("RequestedDuration", certificates.CertificateSigningRequestSpec{}.SwaggerDoc()["expirationSeconds"]),
	text("Condition", "What was decided, and whether the certificate is there."))

func csrCondition(c *certificates.CertificateSigningRequest) string {
	has := map[certificates.RequestConditionType]bool{}
	for _, condition := range c.Status.Conditions {
		has[condition.Type] = true
	}
	text := "Pending"
	switch {
	case has[certificates.CertificateDenied]:
		text = "Denied"
	case has[certificates.CertificateApproved]:
		text = "Approved"
	}
	if has[certificates.CertificateFailed] {
		text += ",Failed"
	}
	if len(c.Status.Certificate) > 0 {
		text += ",Issued"
	}
	return text
}

var PodCertificateRequest = of(func(now time.Time, r *certificates.PodCertificateRequest) []any {
	state := "Pending"
	for _, c := range r.Status.Conditions {
		state = c.Type // at most one, which is the answer
	}
	return []any{r.Name, r.Spec.PodName, r.Spec.ServiceAccountName, string(r.Spec.NodeName), r.Spec.SignerName, state, created(now, r)}
}, nameColumn,
	text("PodName", certificates.PodCertificateRequestSpec{}.SwaggerDoc()["podName"]),
	text("ServiceAccountName", certificates.PodCertificateRequestSpec{}.SwaggerDoc()["serviceAccountName"]),
	text("NodeName", certificates.PodCertificateRequestSpec{}.SwaggerDoc()["nodeName"]),
	text("SignerName", certificates.PodCertificateRequestSpec{}.SwaggerDoc()["signerName"]),
	text("State", "What the signer answered, or Pending."), ageColumn)

var bindingColumns = []metav1.TableColumnDefinition{nameColumn, text("Role", "The role that is granted."), ageColumn,
	wide("Users", "Users it is granted to."), wide("Groups", "Groups it is granted to."),
	wide("ServiceAccounts", "Service accounts it is granted to.")}

var RoleBinding = of(func(now time.Time, b *rbac.RoleBinding) []any {
	return bindingCells(b.Name, created(now, b), b.RoleRef, b.Subjects)
}, bindingColumns...)

var ClusterRoleBinding = of(func(now time.Time, b *rbac.ClusterRoleBinding) []any {
	return bindingCells(b.Name, created(now, b), b.RoleRef, b.Subjects)
}, bindingColumns...)

func bindingCells(name, created string, role rbac.RoleRef, subjects []rbac.Subject) []any {
	var users, groups, accounts []string
	for _, s := range subjects {
		switch s.Kind {
		case rbac.ServiceAccountKind:
			accounts = append(accounts, s.Namespace+"/"+s.Name)
		case rbac.UserKind:
			users = append(users, s.Name)
		case rbac.GroupKind:
			groups = append(groups, s.Name)
		}
	}
	return []any{name, role.Kind + "/" + role.Name, created,
		strings.Join(users, ", "), strings.Join(groups, ", "), strings.Join(accounts, ", ")}
}

var ValidatingWebhookConfiguration = of(func(now time.Time, c *admission.ValidatingWebhookConfiguration) []any {
	return []any{c.Name, int64(len(c.Webhooks)), created(now, c)}
}, nameColumn, number("Webhooks", "Number of webhooks."), ageColumn)

var MutatingWebhookConfiguration = of(func(now time.Time, c *admission.MutatingWebhookConfiguration) []any {
	return []any{c.Name, int64(len(c.Webhooks)), created(now, c)}
}, nameColumn, number("Webhooks", "Number of webhooks."), ageColumn)

var ValidatingAdmissionPolicy = of(func(now time.Time, p *admission.ValidatingAdmissionPolicy) []any {
	param := unset
	if k := p.Spec.ParamKind; k != nil {
		param = k.APIVersion + "/" + k.Kind
	}
	return []any{p.Name, int64(len(p.Spec.Validations)), param, created(now, p)}
}, nameColumn, number("Validations", "Number of validations."), text("ParamKind", "Kind of the policy's parameters."), ageColumn)

var ValidatingAdmissionPolicyBinding = of(func(now time.Time, b *admission.ValidatingAdmissionPolicyBinding) []any {
	param := unset
	if r := b.Spec.ParamRef; r != nil {
		switch {
		case r.Name != "" && r.Namespace != "":
			param = r.Namespace + "/" + r.Name
		case r.Name != "":
			param = "*/" + r.Name
		case r.Selector != nil:
			param = metav1.FormatLabelSelector(r.Selector)
		}
	}
	return []any{b.Name, b.Spec.PolicyName, param, created(now, b)}
}, nameColumn, text("PolicyName", "The policy it applies."), text("ParamRef", "The parameters it uses."), ageColumn)

var FlowSchema = of(func(now time.Time, f *flow.FlowSchema) []any {
	method := none
	if m := f.Spec.DistinguisherMethod; m != nil {
		method = string(m.Type)
	}
	missing := "?"
	for _, c := range f.Status.Conditions {
		if c.Type == flow.FlowSchemaConditionDangling {
			missing = string(c.Status)
		}
	}
	return []any{f.Name, f.Spec.PriorityLevelConfiguration.Name, int64(f.Spec.MatchingPrecedence), method, created(now, f), missing}
}, nameColumn,
	text("PriorityLevel", flow.PriorityLevelConfigurationReference{}.SwaggerDoc()["name"]),
	text("MatchingPrecedence", flow.FlowSchemaSpec{}.SwaggerDoc()["matchingPrecedence"]),
	text("DistinguisherMethod", flow.FlowSchemaSpec{}.SwaggerDoc()["distinguisherMethod"]),
	ageColumn,
	text("MissingPL", "Whether the priority level does not exist."))

var PriorityLevelConfiguration = of(func(now time.Time, p *flow.PriorityLevelConfiguration) []any {
	var shares, queues, hand, length any = none, none, none, none
	if e := p.Spec.Exempt; e != nil && e.NominalConcurrencyShares != nil {
		shares = int64(*e.NominalConcurrencyShares)
	}
	if l := p.Spec.Limited; l != nil {
		shares = int64(deref(l.NominalConcurrencyShares))
		if q := l.LimitResponse.Queuing; q != nil {
			queues, hand, length = int64(q.Queues), int64(q.HandSize), int64(q.QueueLengthLimit)
		}
	}
	return []any{p.Name, string(p.Spec.Type), shares, queues, hand, length, created(now, p)}
}, nameColumn,
	text("Type", flow.PriorityLevelConfigurationSpec{}.SwaggerDoc()["type"]),
	text("NominalConcurrencyShares", flow.LimitedPriorityLevelConfiguration{}.SwaggerDoc()["nominalConcurrencyShares"]),
	text("Queues", flow.QueuingConfiguration{}.SwaggerDoc()["queues"]),
	text("HandSize", flow.QueuingConfiguration{}.SwaggerDoc()["handSize"]),
	text("QueueLengthLimit", flow.QueuingConfiguration{}.SwaggerDoc()["queueLengthLimit"]), ageColumn)
