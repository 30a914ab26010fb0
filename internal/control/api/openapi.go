package api

import (
	"net/http"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apimachinery/pkg/runtime"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	registrationscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"

	"github.com/berth-dev/berth/internal/control/api/openapi"
	"github.com/berth-dev/berth/internal/control/auth/tokens"
	"github.com/berth-dev/berth/internal/control/metrics"
)

// bearerToken is the way in that the documents tell of; with it each operation
// says that it may be refused (401).
const bearerToken = "BearerToken"

const gvkExtension = "x-kubernetes-group-version-kind"

// describe sets what the OpenAPI documents say of the whole server.
func describe(conf *genericapiserver.Config, s *runtime.Scheme) {
	namer := apiopenapi.NewDefinitionNamer(s, registrationscheme.Scheme, metrics.Scheme)
	conf.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	conf.OpenAPIConfig.Info.Title = "Kubernetes"
	conf.OpenAPIConfig.GetDefinitionName = servedKinds(namer.GetDefinitionName)
	conf.OpenAPIConfig.SecurityDefinitions = &spec.SecurityDefinitions{bearerToken: &spec.SecurityScheme{
		SecuritySchemeProps: spec.SecuritySchemeProps{Type: "apiKey", Name: "authorization", In: "header",
			Description: "Bearer Token authentication"},
	}}
	conf.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	conf.OpenAPIV3Config.Info.Title = "Kubernetes"
	conf.OpenAPIV3Config.GetDefinitionName = servedKinds(namer.GetDefinitionName)
	conf.OpenAPIV3Config.SecuritySchemes = spec3.SecuritySchemes{bearerToken: &spec3.SecurityScheme{
		SecuritySchemeProps: spec3.SecuritySchemeProps{Type: "apiKey", Name: "authorization", In: "header",
			Description: "Bearer Token authentication"},
	}}
}

// servedKinds leaves out the kinds of the internal version, for which our types
// are registered too: clients that index schemas by kind would see kinds that
// no one serves.
func servedKinds(name func(string) (string, spec.Extensions)) func(string) (string, spec.Extensions) {
	return func(typ string) (string, spec.Extensions) {
		definition, extensions := name(typ)
		list, ok := extensions[gvkExtension].([]any)
		if !ok {
			return definition, extensions
		}
		var served []any
		for _, entry := range list {
			if gvk, ok := entry.(map[string]any); !ok || gvk["version"] != runtime.APIVersionInternal {
				served = append(served, entry)
			}
		}
		out := spec.Extensions{}
		for key, value := range extensions {
			out[key] = value
		}
		if out[gvkExtension] = served; len(served) == 0 {
			delete(out, gvkExtension)
		}
		return definition, out
	}
}

// issuerDiscovery serves the two documents about the issuer of tokens, in a
// form that OpenAPI lists.
func issuerDiscovery(container *restful.Container, documents map[string]http.Handler) {
	for path, about := range map[string]struct{ doc, operation, mime string }{
		tokens.DiscoveryPath: {"get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'",
			"getServiceAccountIssuerOpenIDConfiguration", "application/json"},
		tokens.JWKSPath: {"get service account issuer OpenID JSON Web Key Set (contains public token verification keys)",
			"getServiceAccountIssuerOpenIDKeyset", "application/jwk-set+json"},
	} {
		// Whatever a verifier of tokens asks for, it gets the one form there is.
		document := documents[path]
		service := new(restful.WebService)
		service.Path(path)
		service.Route(service.GET("").To(func(r *restful.Request, w *restful.Response) { document.ServeHTTP(w, r.Request) }).
			Doc(about.doc).Operation(about.operation).Produces(about.mime, "*/*").Writes(""))
		container.Add(service)
	}
}
