package api

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"sync"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/kube-openapi/pkg/handler3"
)

// serveOpenAPI publishes /openapi/v2 and /openapi/v3, each built on the first
// request for it. Building them takes longer than everything else at start and
// many clusters are never asked. The version 3 documents of custom resources
// come from the server behind ours, as they change.
func serveOpenAPI(s *genericapiserver.GenericAPIServer, conf *genericapiserver.Config, custom *genericapiserver.GenericAPIServer) {
	v2 := &lazyMux{build: func(m *mux.PathRecorderMux) {
		routes.OpenAPI{Config: conf.OpenAPIConfig}.InstallV2(s.Handler.GoRestfulContainer, m)
	}}
	v3 := &joinedV3{
		own: &lazyMux{build: func(m *mux.PathRecorderMux) {
			routes.OpenAPI{V3Config: conf.OpenAPIV3Config}.InstallV3(s.Handler.GoRestfulContainer, m)
		}},
		custom: custom.Handler.NonGoRestfulMux,
		ours:   map[string]bool{},
	}
	for _, service := range s.Handler.GoRestfulContainer.RegisteredWebServices() {
		v3.ours[strings.TrimPrefix(service.RootPath(), "/")] = true
	}
	s.Handler.NonGoRestfulMux.Handle("/openapi/v2", v2)
	s.Handler.NonGoRestfulMux.Handle(v3Root, v3)
	s.Handler.NonGoRestfulMux.HandlePrefix(v3Root+"/", v3)
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

const v3Root = "/openapi/v3"

// joinedV3 shows the version 3 documents of two servers as one set.
type joinedV3 struct {
	own, custom http.Handler
	// ours are the paths of our own documents ("apis/apps/v1").
	ours map[string]bool
}

func (j *joinedV3) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch name := strings.Trim(strings.TrimPrefix(r.URL.Path, v3Root), "/"); {
	case name == "":
		j.list(w, r)
	case j.ours[name]:
		j.own.ServeHTTP(w, r)
	default:
		j.custom.ServeHTTP(w, r)
	}
}

// list answers with the union of both lists; where both name a path, it is
// ours.
func (j *joinedV3) list(w http.ResponseWriter, r *http.Request) {
	union := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
	for _, h := range []http.Handler{j.custom, j.own} {
		answer := newRecorder()
		h.ServeHTTP(answer, r)
		var part handler3.OpenAPIV3Discovery
		if answer.code != http.StatusOK {
			continue // not built yet: nothing to show
		}
		if err := json.Unmarshal(answer.body.Bytes(), &part); err != nil {
			http.Error(w, "joining OpenAPI lists: "+err.Error(), http.StatusInternalServerError)
			return
		}
		maps.Copy(union.Paths, part.Paths)
	}
	body, err := json.Marshal(union)
	if err != nil {
		http.Error(w, "joining OpenAPI lists: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// A client that went away is no concern of this server.
	_, _ = w.Write(body)
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
