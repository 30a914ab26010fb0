package ui

import (
	"context"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// rights asks the API server's authorizer, once per question. It serves one
// rendering and is not for use at the same time.
type rights struct {
	ctx        context.Context //nolint:containedctx // the rendering's
	user       user.Info
	authorizer authorizer.UnconditionalAuthorizer
	answers    map[[2]string]bool
}

func newRights(ctx context.Context, u user.Info, a authorizer.UnconditionalAuthorizer) *rights {
	return &rights{ctx, u, a, map[[2]string]bool{}}
}

// List implements view.Rights.
func (r *rights) List(resource, namespace string) bool {
	name, group, _ := strings.Cut(resource, ".")
	return r.ask([2]string{resource, namespace}, authorizer.AttributesRecord{User: r.user, Verb: "list", Namespace: namespace,
		APIGroup: group, APIVersion: "v1", Resource: name, ResourceRequest: true})
}

// Path implements view.Rights.
func (r *rights) Path(path string) bool {
	return r.ask([2]string{path, "path"}, authorizer.AttributesRecord{User: r.user, Verb: "get", Path: path})
}

// ask keeps the answer; an authorizer that fails allows nothing.
func (r *rights) ask(key [2]string, a authorizer.AttributesRecord) bool {
	allowed, known := r.answers[key]
	if !known {
		decision, _, err := r.authorizer.Authorize(r.ctx, a)
		allowed = err == nil && decision == authorizer.DecisionAllow
		r.answers[key] = allowed
	}
	return allowed
}
