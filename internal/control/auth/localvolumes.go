package auth

import (
	"context"
	"regexp"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/berth-dev/berth/internal/localvolume"
)

// localVolumesCall is the path of a call to the driver of a node's local
// volumes, on the agent's own port. It leaves no room for another port, another
// path or "..".
var localVolumesCall = regexp.MustCompile(`^/api/v1/nodes/[a-z0-9.-]+/proxy` + regexp.QuoteMeta(localvolume.Path) + `[A-Za-z]+$`)

// localVolumes lets through the node proxy, to the driver of local volumes
// alone, who may "create nodes/localvolumes". That is the right which the agent
// asks for there too; "create nodes/proxy" would open sessions in every pod.
type localVolumes struct{ rights authorizer.Authorizer }

func (l localVolumes) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if !a.IsResourceRequest() || a.GetVerb() != "create" || a.GetAPIGroup() != "" || a.GetResource() != "nodes" ||
		a.GetSubresource() != "proxy" || !localVolumesCall.MatchString(a.GetPath()) {
		return authorizer.DecisionNoOpinion, "", nil
	}
	return l.rights.Authorize(ctx, ofLocalVolumes{a})
}

// ConditionsAwareAuthorize answers like Authorize: a right here is whole or not.
func (l localVolumes) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(l.Authorize(ctx, a))
}

// EvaluateConditions refuses: this authorizer never hands out conditions.
func (l localVolumes) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision,
	authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// ofLocalVolumes are the attributes of the same request, for its narrower right.
type ofLocalVolumes struct{ authorizer.Attributes }

func (ofLocalVolumes) GetSubresource() string { return "localvolumes" }
