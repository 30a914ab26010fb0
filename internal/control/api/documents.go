package api

import (
	"net/http"
	"sync"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
)

// serveOpenAPI publishes /openapi/v2 and /openapi/v3, each built on the first
// request for it. Building them takes longer than everything else at start and
// many clusters are never asked.
func serveOpenAPI(s *genericapiserver.GenericAPIServer, conf *genericapiserver.Config) {
	v2 := &lazyMux{build: func(m *mux.PathRecorderMux) {
		routes.OpenAPI{Config: conf.OpenAPIConfig}.InstallV2(s.Handler.GoRestfulContainer, m)
	}}
	v3 := &lazyMux{build: func(m *mux.PathRecorderMux) {
		routes.OpenAPI{V3Config: conf.OpenAPIV3Config}.InstallV3(s.Handler.GoRestfulContainer, m)
	}}
	s.Handler.NonGoRestfulMux.Handle("/openapi/v2", v2)
	s.Handler.NonGoRestfulMux.Handle("/openapi/v3", v3)
	s.Handler.NonGoRestfulMux.HandlePrefix("/openapi/v3/", v3)
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
