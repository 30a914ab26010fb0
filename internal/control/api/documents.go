package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/emicklei/go-restful/v3"
	"github.com/google/uuid"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/cached"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"

	"github.com/berth-dev/berth/internal/control/api/aggregation"
)

// v3Root is where clients find the list of version 3 documents.
const v3Root = "/openapi/v3"

// serveOpenAPI publishes the documents of all types, each built when it is
// first asked for. Building them takes longer than everything else at start,
// and most clusters are asked for a few or none. The version 3 documents of
// custom resources come from the server behind ours, those of foreign servers
// from there, as they change. The one version 2 document is that server's too,
// with ours as what it begins from; foreign servers are not in it.
func serveOpenAPI(front *aggregation.Front, conf *genericapiserver.Config, own, custom *genericapiserver.GenericAPIServer) {
	all := own.Handler.GoRestfulContainer.RegisteredWebServices()
	for _, service := range front.Handler.GoRestfulContainer.RegisteredWebServices() {
		// Both say their version and the like.
		if !slices.ContainsFunc(all, func(o *restful.WebService) bool { return o.RootPath() == service.RootPath() }) {
			all = append(all, service)
		}
	}
	v2 := &lazyMux{build: func(m *mux.PathRecorderMux) {
		tree, err := builder.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices(all), conf.OpenAPIConfig)
		utilruntime.Must(err) // the routes are fixed when the program is built
		// Schemas of custom resources come without defaults, and only like
		// merges with like.
		tree.Definitions = handler.PruneDefaults(tree.Definitions)
		*custom.StaticOpenAPISpec = *tree
		custom.OpenAPIVersionedService.RegisterOpenAPIVersionedService("/openapi/v2", m)
	}}
	v3 := &documents{
		custom: custom.Handler.NonGoRestfulMux, foreign: front.Documents,
		hash: uuid.NewString(), own: map[string]*document{},
	}
	for _, service := range all {
		name := strings.TrimPrefix(service.RootPath(), "/")
		v3.own[name] = &document{name: name, service: service, config: conf.OpenAPIV3Config}
	}
	front.Handler.NonGoRestfulMux.Handle("/openapi/v2", v2)
	front.Handler.NonGoRestfulMux.Handle(v3Root, v3)
	front.Handler.NonGoRestfulMux.HandlePrefix(v3Root+"/", v3)
}

// lazyMux fills itself when it is first asked; requests meanwhile wait.
type lazyMux struct {
	build func(*mux.PathRecorderMux)
	once  sync.Once
	mux   *mux.PathRecorderMux
}

func (l *lazyMux) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.once.Do(func() {
		l.mux = mux.NewPathRecorderMux("openapi")
		l.build(l.mux)
	})
	l.mux.ServeHTTP(w, r)
}

// documents serves the version 3 documents of all servers as one set.
type documents struct {
	own     map[string]*document // by path, as in "apis/apps/v1"
	custom  http.Handler
	foreign *aggregation.Documents
	// hash stands for the content of our own documents in their addresses, by
	// which clients cache them. They cannot change while the process lives, and
	// a hash of the content itself would need all of it to be built first.
	hash string
}

func (d *documents) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.Trim(strings.TrimPrefix(r.URL.Path, v3Root), "/")
	if name == "" {
		d.list(w, r)
		return
	}
	if d.foreign.Serves(name) {
		d.foreign.ServeHTTP(w, r)
		return
	}
	doc := d.own[name]
	if doc == nil {
		d.custom.ServeHTTP(w, r)
		return
	}
	if r.URL.Query().Get("hash") == d.hash {
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).UTC().Format(http.TimeFormat))
	}
	// The library compares hash with that of the content and would redirect.
	plain := r.Clone(r.Context())
	plain.URL.RawQuery = ""
	doc.ServeHTTP(w, plain)
}

// list answers with the documents of all servers; where several name a path, a
// foreign server's registration counts most, then ours.
func (d *documents) list(w http.ResponseWriter, r *http.Request) {
	answer := newRecorder()
	d.custom.ServeHTTP(answer, r)
	union := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
	if answer.code == http.StatusOK { // else it has nothing to show yet
		if err := json.Unmarshal(answer.body.Bytes(), &union); err != nil {
			http.Error(w, "joining OpenAPI lists: "+err.Error(), http.StatusInternalServerError)
			return
		}
	}
	for name := range d.own {
		union.Paths[name] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: v3Root + "/" + name + "?hash=" + d.hash}
	}
	maps.Copy(union.Paths, d.foreign.List(r.Context()))
	body, err := json.Marshal(union)
	if err != nil {
		http.Error(w, "joining OpenAPI lists: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// A client that went away is no concern of this server.
	_, _ = w.Write(body)
}

// document is one version 3 document. It keeps the encoded forms that were
// asked for, not the tree they are made from.
type document struct {
	name    string
	service *restful.WebService
	config  *common.OpenAPIV3Config

	once sync.Once
	mux  *mux.PathRecorderMux
}

func (d *document) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.once.Do(func() {
		d.mux = mux.NewPathRecorderMux("openapi")
		service := handler3.NewOpenAPIService()
		// Only a path that is taken could fail, and the mux is empty.
		utilruntime.Must(service.RegisterOpenAPIV3VersionedService(v3Root, d.mux))
		service.UpdateGroupVersionLazy(d.name, cached.Func(func() (*spec3.OpenAPI, string, error) {
			tree, err := builder3.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices([]*restful.WebService{d.service}), d.config)
			if err != nil {
				return nil, "", fmt.Errorf("building OpenAPI document %s: %w", d.name, err)
			}
			return tree, d.name, nil
		}))
	})
	d.mux.ServeHTTP(w, r)
}

// recorder keeps a response instead of sending it.
type recorder struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func newRecorder() *recorder { return &recorder{header: http.Header{}, code: http.StatusOK} }

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(code int)        { r.code = code }
func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }
