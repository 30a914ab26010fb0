package defaults

import (
	v1 "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	scheduling "k8s.io/api/scheduling/v1"
)

func binding(role *rbac.RoleRef, subjects []rbac.Subject) {
	zero(&role.APIGroup, rbac.GroupName)
	for i := range subjects {
		switch subjects[i].Kind {
		case rbac.UserKind, rbac.GroupKind:
			zero(&subjects[i].APIGroup, rbac.GroupName)
		}
	}
}

func RoleBinding(b *rbac.RoleBinding) { binding(&b.RoleRef, b.Subjects) }

func ClusterRoleBinding(b *rbac.ClusterRoleBinding) { binding(&b.RoleRef, b.Subjects) }

func PriorityClass(c *scheduling.PriorityClass) { fill(&c.PreemptionPolicy, v1.PreemptLowerPriority) }
