package api

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"path"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	customserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	registrationscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kube-openapi/pkg/cached"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/validation/spec"

	nooptrace "go.opentelemetry.io/otel/trace/noop"
)

// customResources makes the server of CustomResourceDefinitions and of the
// resources they define. It stands behind ours: what we do not serve, it may.
func (s *Server) customResources(conf *genericapiserver.Config) (*customserver.CustomResourceDefinitions, error) {
	own := *conf
	own.PostStartHooks = map[string]genericapiserver.PostStartHookConfigEntry{}
	own.RESTOptionsGetter = definitionOptions(s.backend)
	own.MergedResourceConfig = customserver.DefaultAPIResourceConfigSource()
	own.OpenAPIConfig = nil
	own.SkipOpenAPIInstallation = false
	// The same definitions under the names of another scheme.
	documents := *conf.OpenAPIV3Config
	documents.GetDefinitionName = openapinamer.NewDefinitionNamer(customserver.Scheme).GetDefinitionName
	own.OpenAPIV3Config = &documents
	s.openAPI = append(s.openAPI, conf.OpenAPIV3Config, &documents)
	// What is not about custom resources is the front server's to say.
	own.EnableIndex, own.EnableMetrics = false, false
	custom := &customserver.Config{
		GenericConfig: &genericapiserver.RecommendedConfig{Config: own, SharedInformerFactory: s.shared},
		ExtraConfig: customserver.ExtraConfig{
			CRDRESTOptionsGetter: customOptions{s.backend},
			MasterCount:          1,
			ServiceResolver:      s.serviceResolver(),
			AuthResolverWrapper: webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil,
				conf.LoopbackClientConfig, nooptrace.NewTracerProvider()),
		},
	}
	server, err := custom.Complete().New(genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, fmt.Errorf("making server of custom resources: %w", err)
	}
	// The library publishes the schemas of custom resources only where it finds
	// a version 2 document to begin with; serveOpenAPI fills this one in before
	// the first request is answered from it.
	begin := &spec.Swagger{}
	server.GenericAPIServer.StaticOpenAPISpec = begin
	server.GenericAPIServer.OpenAPIVersionedService = handler.NewOpenAPIServiceLazy(
		cached.Func(func() (*spec.Swagger, string, error) { return begin, "built-in", nil }))
	return server, nil
}

// foreignOptions stores resources whose types are another scheme's.
type foreignOptions struct {
	*backend
	codecs         runtime.StorageSerializer
	stored, memory schema.GroupVersion
}

// definitionOptions stores CustomResourceDefinitions.
func definitionOptions(b *backend) foreignOptions {
	return foreignOptions{b, customserver.Codecs, apiextensionsv1.SchemeGroupVersion, apiextensions.SchemeGroupVersion}
}

// registrationOptions stores APIServices.
func registrationOptions(b *backend) foreignOptions {
	return foreignOptions{b, registrationscheme.Codecs, apiregistrationv1.SchemeGroupVersion, apiregistration.SchemeGroupVersion}
}

func (o foreignOptions) GetRESTOptions(gr schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	codec, versioner, err := serverstorage.NewStorageCodec(serverstorage.StorageCodecConfig{
		StorageMediaType:  runtime.ContentTypeProtobuf,
		StorageSerializer: o.codecs,
		StorageVersion:    o.stored,
		MemoryVersion:     o.memory,
	})
	if err != nil {
		return generic.RESTOptions{}, fmt.Errorf("storing %s: %w", gr, err)
	}
	return o.options(gr, codec, versioner), nil
}

// customOptions stores the objects that definitions define, as JSON.
type customOptions struct{ *backend }

func (o customOptions) GetRESTOptions(gr schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	return o.options(gr, unstructured.UnstructuredJSONScheme, nil), nil
}

// options puts resources of foreign groups below a key of the group's name.
func (b *backend) options(gr schema.GroupResource, codec runtime.Codec, versioner runtime.GroupVersioner) generic.RESTOptions {
	conf := storagebackend.NewDefaultConfig(keyPrefix, codec)
	conf.EncodeVersioner = versioner
	conf.Transport = b.store.Transport()
	return generic.RESTOptions{
		StorageConfig:           conf.ForResource(gr),
		Decorator:               b.cached,
		EnableGarbageCollection: true,
		DeleteCollectionWorkers: 1,
		ResourcePrefix:          path.Join("/", gr.Group, gr.Resource),
	}
}

// serviceResolver finds the cluster IP of a webhook's service: the server's
// host does not resolve cluster names.
func (s *Server) serviceResolver() webhook.ServiceResolver { return clusterIPs{s} }

type clusterIPs struct{ s *Server }

func (c clusterIPs) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	ctx, cancel := context.WithTimeout(context.Background(), resolveTimeout)
	defer cancel()
	service, err := c.s.client.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("finding service %s/%s: %w", namespace, name, err)
	}
	return serviceURL(service, port)
}

// serviceURL is where a service answers on port.
func serviceURL(service *corev1.Service, port int32) (*url.URL, error) {
	if !slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == port }) {
		return nil, fmt.Errorf("service %s/%s has no port %d", service.Namespace, service.Name, port)
	}
	host := service.Spec.ClusterIP
	switch {
	case service.Spec.Type == corev1.ServiceTypeExternalName:
		host = service.Spec.ExternalName
	case host == "" || host == corev1.ClusterIPNone:
		return nil, fmt.Errorf("service %s/%s has no cluster IP", service.Namespace, service.Name)
	}
	return &url.URL{Scheme: "https", Host: net.JoinHostPort(host, strconv.Itoa(int(port)))}, nil
}
