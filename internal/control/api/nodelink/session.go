package nodelink

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
)

// MayCreate asks for the verb create on the subresource of the request in ctx.
// A websocket starts with GET, for which the server has asked for get only; but
// what runs in the session is no reading, so it takes the same right as the
// POST of SPDY (kubernetes/kubernetes#133515, gate
// AuthorizePodWebsocketUpgradeCreatePermission).
func MayCreate(ctx context.Context, a authorizer.Authorizer) error {
	asked, err := filters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("reading what the request asks for: %w", err))
	}
	if asked.GetVerb() == "create" {
		return nil
	}
	decision, reason, err := a.Authorize(ctx, creating{asked})
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("authorizing create on %s/%s: %w", asked.GetResource(), asked.GetSubresource(), err))
	}
	what := schema.GroupResource{Resource: asked.GetResource() + "/" + asked.GetSubresource()}
	text := fmt.Sprintf("User %q cannot create resource %q in API group %q in the namespace %q; a websocket needs the verb create "+
		"beside get",
		asked.GetUser().GetName(), what.Resource, asked.GetAPIGroup(), asked.GetNamespace())
	if reason != "" {
		text += ": " + reason
	}
	return apierrors.NewForbidden(what, asked.GetName(), errors.New(text))
}

// creating is a request as if its verb were create.
type creating struct{ authorizer.Attributes }

func (creating) GetVerb() string { return "create" }
