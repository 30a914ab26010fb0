// Package aggregation puts the API servers that APIService objects name
// beside ours: it stands in front of our own groups, passes requests for
// foreign ones on, and joins what all of them say they serve.
package aggregation

import (
	"fmt"
	"log/slog"

	crdinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
)

// registerWorkers is how many of our groups are registered at once: the writes
// of a first start then share a sync of the disk.
const registerWorkers = 16

// Config is what New needs; all of it is required but the certificate.
type Config struct {
	// Generic is the configuration of the server behind, taken before it was
	// completed. New changes its copy.
	Generic genericapiserver.Config
	// Behind serves our own groups and custom resources.
	Behind genericapiserver.DelegationTarget
	// Storage stores APIService objects.
	Storage generic.RESTOptionsGetter
	// Informers on the loopback client; New registers services and their
	// endpoints with it.
	Informers informers.SharedInformerFactory
	// Definitions are the custom resources, whose groups are listed like ours.
	Definitions crdinformers.CustomResourceDefinitionInformer
	// CertFile and KeyFile show foreign servers that it is us who names the
	// user. Without them foreign servers take our requests as anonymous.
	CertFile, KeyFile string
	// Groups are ours, in the order of discovery, each with its versions in
	// order of preference.
	Groups []Group
	// Yielding are groups of ours that a foreign server may take over by its
	// APIService, and give back by deleting it.
	Yielding []Group
	Log      *slog.Logger
}

// Group is one API group and its versions.
type Group struct {
	Name     string
	Versions []string
}

// Front is the server that listens. It begins to route when it runs.
//
// It is run as the generic server it is and not as the library's aggregator,
// which would also fetch, keep and join the OpenAPI documents of all groups
// whether or not someone asks: tens of MiB. See Documents.
type Front struct {
	*genericapiserver.GenericAPIServer
	// Documents answers for the OpenAPI documents of foreign servers.
	Documents *Documents

	listed chan struct{}
}

// New makes the server in front. Anyone who runs it also ends what is behind.
func New(cfg Config) (*Front, error) {
	conf := cfg.Generic
	conf.PostStartHooks = map[string]genericapiserver.PostStartHookConfigEntry{}
	conf.RESTOptionsGetter = cfg.Storage
	conf.MergedResourceConfig = serverstorage.NewResourceConfig()
	conf.MergedResourceConfig.EnableVersions(apiregistrationv1.SchemeGroupVersion)
	services, slices := cfg.Informers.Core().V1().Services(), cfg.Informers.Discovery().V1().EndpointSlices()
	endpoints, err := proxy.NewEndpointSliceIndexerGetter(slices)
	if err != nil {
		return nil, fmt.Errorf("indexing endpoint slices: %w", err)
	}
	resolve := resolver{services: services.Lister(), endpoints: endpoints}
	library := apiserver.Config{
		GenericConfig: &genericapiserver.RecommendedConfig{Config: conf, SharedInformerFactory: cfg.Informers},
		ExtraConfig: apiserver.ExtraConfig{
			ProxyClientCertFile: cfg.CertFile, ProxyClientKeyFile: cfg.KeyFile,
			ServiceResolver:           resolve,
			RejectForwardingRedirects: true,
		},
	}
	aggregator, err := library.Complete().NewWithDelegate(cfg.Behind)
	if err != nil {
		return nil, fmt.Errorf("making the aggregating server: %w", err)
	}
	f := &Front{GenericAPIServer: aggregator.GenericAPIServer, listed: make(chan struct{})}
	f.Documents = &Documents{
		services: aggregator.APIRegistrationInformers.Apiregistration().V1().APIServices().Lister(),
		resolver: resolve, certFile: cfg.CertFile, keyFile: cfg.KeyFile,
	}
	if err := f.register(cfg, aggregator); err != nil {
		f.Destroy()
		return nil, err
	}
	return f, nil
}

// Listed is closed once discovery names every one of our own groups.
func (f *Front) Listed() <-chan struct{} { return f.listed }

// register keeps an APIService for each version of our groups and of the
// groups of custom resources.
func (f *Front) register(cfg Config, aggregator *apiserver.APIAggregator) error {
	client, err := clientset.NewForConfig(cfg.Generic.LoopbackClientConfig)
	if err != nil {
		return fmt.Errorf("making client of API services: %w", err)
	}
	registered := aggregator.APIRegistrationInformers.Apiregistration().V1().APIServices()
	keeper := autoregister.NewAutoRegisterController(registered, client.ApiregistrationV1())
	missing := sets.New[string]()
	for _, service := range local(cfg.Groups) {
		missing.Insert(service.Name)
		keeper.AddAPIServiceToSync(service)
	}
	// Events come one after the other, so missing needs no lock.
	if _, err := registered.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
		service := obj.(*apiregistrationv1.APIService)
		if missing.Has(service.Name) && missing.Delete(service.Name).Len() == 0 {
			close(f.listed)
		}
	}}); err != nil {
		return fmt.Errorf("watching API services: %w", err)
	}
	yielding, known, err := newYielder(cfg.Yielding, client.ApiregistrationV1(), registered.Informer(), cfg.Log)
	if err != nil {
		return err
	}
	custom := &customGroups{definitions: cfg.Definitions.Lister(), keeper: keeper, log: cfg.Log, known: sets.New[string]()}
	handler, err := cfg.Definitions.Informer().AddEventHandler(custom.handler())
	if err != nil {
		return fmt.Errorf("watching custom resource definitions: %w", err)
	}
	return f.AddPostStartHook("kube-apiserver-autoregistration", func(ctx genericapiserver.PostStartHookContext) error {
		go yielding.run(ctx, known.Done())
		go func() {
			// A stored registration whose definition is not known yet would be
			// taken for a leftover.
			if cache.WaitFor(ctx, "", handler.HasSyncedChecker()) {
				keeper.Run(registerWorkers, ctx.Done())
			}
		}()
		return nil
	})
}

// local are the registrations of groups. The first group is listed first, and
// the first version of a group is its preferred one.
func local(groups []Group) []*apiregistrationv1.APIService {
	const first, step = 18000, 100
	var out []*apiregistrationv1.APIService
	for i, group := range groups {
		for j, version := range group.Versions {
			out = append(out, apiService(schema.GroupVersion{Group: group.Name, Version: version},
				int32(first-i*step), int32(len(group.Versions)-j)))
		}
	}
	return out
}

func apiService(gv schema.GroupVersion, group, version int32) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: group, VersionPriority: version,
		},
	}
}
