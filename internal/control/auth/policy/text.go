package policy

import (
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/berth-dev/berth/internal/kube"
)

// mustParse is for the texts in this package, which a test parses.
func mustParse(text string) []rbacv1.PolicyRule {
	rules, err := kube.ParseRules(text)
	if err != nil {
		panic(err)
	}
	return rules
}
