package api

import (
	"fmt"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/path"
	authorizerunion "k8s.io/apiserver/pkg/authorization/union"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// publicPaths are all that a caller without credentials may read.
var publicPaths = []string{
	"/healthz", "/livez", "/readyz", "/version", "/version/",
}

// identify sets who callers are and what they may do: client certificates, of
// which the group system:masters may do everything.
func identify(out *genericapiserver.Config) error {
	var open []apiserver.AnonymousAuthCondition
	for _, p := range publicPaths {
		open = append(open, apiserver.AnonymousAuthCondition{Path: p})
	}
	certificate := x509.NewDynamic(out.SecureServing.ClientCA.VerifyOptions, x509.CommonNameUserConversion)
	out.Authentication.Authenticator = union.New(
		group.NewAuthenticatedGroupAdder(certificate),
		anonymous.NewAuthenticator(open),
	)
	public, err := path.NewAuthorizer(publicPaths)
	if err != nil {
		return fmt.Errorf("configuring public paths: %w", err)
	}
	out.Authorization.Authorizer, err = authorizerunion.New(
		authorizerunion.NamedAuthorizer{AuthorizerName: "masters", Authorizer: authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)},
		authorizerunion.NamedAuthorizer{AuthorizerName: "public", Authorizer: public},
	)
	if err != nil {
		return fmt.Errorf("configuring authorization: %w", err)
	}
	return nil
}
