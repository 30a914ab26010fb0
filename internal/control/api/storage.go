package api

import (
	"context"
	"fmt"
	"path"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/control/api/encryption"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/scheme"
	"github.com/berth-dev/berth/internal/control/api/services"
	"github.com/berth-dev/berth/internal/control/store"
)

// keyPrefix is the root of all keys in etcd.
const keyPrefix = "/registry"

// oldPrefixes are the keys of resources that are not stored under their own
// name. They are the ones every Kubernetes cluster uses, so that an etcd can
// move between servers.
var oldPrefixes = map[schema.GroupResource]string{
	{Resource: "nodes"}:                                 "minions",
	{Resource: "services"}:                              "services/specs",
	{Resource: "endpoints"}:                             "services/endpoints",
	{Resource: "replicationcontrollers"}:                "controllers",
	{Group: "networking.k8s.io", Resource: "ingresses"}: "ingress",
	{Group: "events.k8s.io", Resource: "events"}:        "events",
	{Group: "policy", Resource: "poddisruptionbudgets"}: "poddisruptionbudgets",
}

// backend makes the storage of each resource on one shared etcd client. It is
// the library's RESTOptionsGetter.
type backend struct {
	set       *scheme.Set
	store     *store.Store
	client    *kubernetes.Client
	compactor etcd3.Compactor
	// gvs is the stored version of each resource; others get
	// the preferred version of their group.
	gvs     map[schema.GroupResource]schema.GroupVersion
	noCache map[schema.GroupResource]bool
	// encryption is nil where nothing is encrypted.
	encryption *encryption.Encryption
	close      func()
}

func newBackend(set *scheme.Set, st *store.Store, all []registry.Resource, encrypted *encryption.Encryption) *backend {
	client := &kubernetes.Client{Client: st.Client()}
	client.Kubernetes = client
	compactor := etcd3.StartCompactorPerEndpoint(st.Client(), storagebackend.DefaultCompactInterval)
	if st.Embedded() {
		// The in-process client has no endpoints for the library to ask; tell
		// it what the linked-in server can do.
		feature.DefaultFeatureSupportChecker.CheckClient(context.Background(), embeddedServer{}, storage.RequestWatchProgress)
	}
	b := &backend{
		set: set, store: st, client: client, compactor: compactor, close: compactor.Stop, encryption: encrypted,
		gvs: map[schema.GroupResource]schema.GroupVersion{}, noCache: map[schema.GroupResource]bool{},
	}
	for _, kind := range all {
		i := kind.Info()
		if i.GroupResource() == i.StoredAs {
			continue // another version of a kind that says how its objects are stored
		}
		b.gvs[i.GroupResource()] = i.GroupVersion
		b.noCache[i.GroupResource()] = i.NoWatchCache
	}
	b.noCache[services.PortRecords] = true // no one watches it
	return b
}

// embeddedServer answers the library's question for the etcd version.
type embeddedServer struct{}

func (embeddedServer) Endpoints() []string { return []string{"embedded"} }

func (embeddedServer) Status(context.Context, string) (*clientv3.StatusResponse, error) {
	return &clientv3.StatusResponse{Version: store.EtcdVersion}, nil
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (b *backend) GetRESTOptions(gr schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	gv, known := b.gvs[gr]
	if !known {
		versions := b.set.Scheme.PrioritizedVersionsForGroup(gr.Group)
		if len(versions) == 0 {
			return generic.RESTOptions{}, fmt.Errorf("storing %s: group %q is not in the scheme", gr, gr.Group)
		}
		gv = versions[0]
	}
	codec, versioner, err := serverstorage.NewStorageCodec(serverstorage.StorageCodecConfig{
		StorageMediaType:  runtime.ContentTypeProtobuf,
		StorageSerializer: b.set.Codecs,
		StorageVersion:    gv,
		MemoryVersion:     schema.GroupVersion{Group: gv.Group, Version: runtime.APIVersionInternal},
	})
	if err != nil {
		return generic.RESTOptions{}, fmt.Errorf("storing %s: %w", gr, err)
	}
	conf := storagebackend.NewDefaultConfig(keyPrefix, codec)
	conf.EncodeVersioner = versioner
	conf.Transport = b.store.Transport()
	prefix := gr.Resource
	if old, ok := oldPrefixes[gr]; ok {
		prefix = old
	}
	decorate := b.cached
	if b.noCache[gr] {
		decorate = b.plain
	}
	return generic.RESTOptions{
		StorageConfig:           conf.ForResource(gr),
		Decorator:               decorate,
		EnableGarbageCollection: true,
		DeleteCollectionWorkers: 1,
		ResourcePrefix:          path.Join("/", prefix),
	}, nil
}

// plain is storage straight on etcd, for readers.
func (b *backend) plain(
	conf *storagebackend.ConfigForResource, prefix string,
	keyFunc func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object,
	attrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	s, destroy, err := b.raw(conf, prefix, keyFunc, newFunc, newListFunc, attrs, triggers, indexers)
	if err != nil {
		return nil, nil, err
	}
	return uncached{s}, destroy, nil
}

// raw is storage straight on etcd, for readers or for a watch cache.
func (b *backend) raw(
	conf *storagebackend.ConfigForResource, prefix string,
	_ func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object,
	_ storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	versioner := storage.APIObjectVersioner{}
	s, err := etcd3.New(b.client, b.compactor, conf.Codec, newFunc, newListFunc,
		conf.Prefix, prefix, conf.GroupResource, b.encryption.Transformer(conf.GroupResource),
		conf.LeaseManagerConfig, etcd3.NewDefaultDecoder(conf.Codec, versioner), versioner)
	if err != nil {
		return nil, nil, fmt.Errorf("storing %s: %w", conf.GroupResource, err)
	}
	return s, sync.OnceFunc(s.Close), nil
}

// cached is storage behind a watch cache: one watch on etcd feeds all readers.
func (b *backend) cached(
	conf *storagebackend.ConfigForResource, prefix string,
	keyFunc func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object,
	attrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	raw, closeRaw, err := b.raw(conf, prefix, keyFunc, newFunc, newListFunc, attrs, triggers, indexers)
	if err != nil {
		return nil, nil, err
	}
	c, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage:             raw,
		Versioner:           storage.APIObjectVersioner{},
		GroupResource:       conf.GroupResource,
		EventsHistoryWindow: conf.EventsHistoryWindow,
		ResourcePrefix:      prefix,
		KeyFunc:             keyFunc,
		NewFunc:             newFunc,
		NewListFunc:         newListFunc,
		GetAttrsFunc:        attrs,
		IndexerFuncs:        triggers,
		Indexers:            indexers,
		Codec:               conf.Codec,
	})
	if err != nil {
		closeRaw()
		return nil, nil, fmt.Errorf("caching %s: %w", conf.GroupResource, err)
	}
	delegate := cacher.NewCacheDelegator(c, raw)
	return delegate, sync.OnceFunc(func() {
		delegate.Stop()
		c.Stop()
		closeRaw()
	}), nil
}
