package serve

import (
	"net/http"
	"net/http/pprof"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/component-base/tracing"

	"github.com/berth-dev/berth/internal/localvolume"
)

// gate says which configuration field can switch a route off.
type gate int

const (
	always gate = iota
	debugging
	profiling
	systemLogs
	flags
)

// route is one row of the API. Patterns are those of http.ServeMux, without
// the method. A caller needs the verb of its method on one of the subresources
// of the node; they are tried in order.
type route struct {
	pattern      string
	methods      []string
	subresources []string
	// verb is asked for instead of the method's. A session by websocket starts
	// with GET and is no reading (kubernetes/kubernetes#136550).
	verb string
	gate gate
	// readOnly routes are served without TLS on the read-only port as well.
	readOnly bool
	// long routes stay open for as long as the caller wants.
	long    bool
	handler http.HandlerFunc
}

var (
	get     = []string{http.MethodGet}
	getPost = []string{http.MethodGet, http.MethodPost}
)

func (s *server) routes() []route {
	healthz, pods, proxy := []string{"healthz", "proxy"}, []string{"pods", "proxy"}, []string{"proxy"}
	stats, metrics, log := []string{"stats"}, []string{"metrics"}, []string{"log"}
	return []route{
		{pattern: "/healthz", methods: get, subresources: healthz, readOnly: true, handler: s.healthz},
		{pattern: "/healthz/{check}", methods: get, subresources: healthz, readOnly: true, handler: s.healthz},
		{pattern: "/pods", methods: get, subresources: pods, readOnly: true, handler: s.pods},
		{pattern: "/runningpods/{$}", methods: get, subresources: pods, gate: debugging, handler: s.runningPods},
		{pattern: "/stats/summary", methods: getPost, subresources: stats, readOnly: true, handler: s.summary},
		{pattern: "/metrics", methods: get, subresources: metrics, readOnly: true, handler: gathered(s.cfg.Gather)},
		{pattern: "/metrics/probes", methods: get, subresources: metrics, readOnly: true, handler: gathered(s.cfg.Probes)},
		{pattern: "/metrics/resource", methods: get, subresources: metrics, readOnly: true, handler: s.resourceMetrics},
		{pattern: "/metrics/cadvisor", methods: get, subresources: metrics, readOnly: true, handler: s.cadvisorMetrics},
		{pattern: "/metrics/slis", methods: get, subresources: metrics, readOnly: true, handler: slisHandler()},
		{pattern: "/statusz", methods: get, subresources: []string{"statusz", "proxy"}, handler: s.statusz()},
		{pattern: "/flagz", methods: get, subresources: []string{"configz", "proxy"}, handler: s.flagz()},
		{pattern: "/configz", methods: get, subresources: []string{"configz", "proxy"}, handler: s.configz},
		{pattern: "/checkpoint/{namespace}/{pod}/{container}", methods: []string{http.MethodPost}, subresources: []string{"checkpoint"},
			handler: s.checkpoint},
		{pattern: "/containerLogs/{namespace}/{pod}/{container}", methods: get, subresources: proxy, gate: debugging, long: true,
			handler: s.containerLogs},
		{pattern: "/exec/{namespace}/{pod}/{container}", methods: getPost, verb: "create", subresources: []string{"exec", "proxy"},
			gate: debugging, long: true, handler: s.exec},
		{pattern: "/exec/{namespace}/{pod}/{uid}/{container}", methods: getPost, verb: "create", subresources: []string{"exec", "proxy"},
			gate: debugging, long: true, handler: s.exec},
		{pattern: "/attach/{namespace}/{pod}/{container}", methods: getPost, verb: "create", subresources: []string{"attach", "proxy"},
			gate: debugging, long: true, handler: s.attach},
		{pattern: "/attach/{namespace}/{pod}/{uid}/{container}", methods: getPost, verb: "create", subresources: []string{"attach",
			"proxy"}, gate: debugging, long: true, handler: s.attach},
		{pattern: "/portForward/{namespace}/{pod}", methods: getPost, verb: "create", subresources: []string{"portforward", "proxy"},
			gate: debugging, long: true, handler: s.portForward},
		{pattern: "/portForward/{namespace}/{pod}/{uid}", methods: getPost, verb: "create", subresources: []string{"portforward", "proxy"},
			gate: debugging, long: true, handler: s.portForward},
		{pattern: "/run/{namespace}/{pod}/{container}", methods: []string{http.MethodPost}, verb: "create",
			subresources: []string{"run", "proxy"}, gate: debugging, handler: s.run},
		{pattern: "/run/{namespace}/{pod}/{uid}/{container}", methods: []string{http.MethodPost}, verb: "create",
			subresources: []string{"run", "proxy"}, gate: debugging, handler: s.run},
		{pattern: localvolume.Path + "{call}", methods: []string{http.MethodPost}, verb: "create", subresources: []string{"localvolumes",
			"proxy"}, handler: s.localVolumes},
		{pattern: "/images/{call}", methods: []string{http.MethodGet, http.MethodPost, http.MethodDelete}, subresources: []string{"images"},
			long: true, handler: s.images},
		{pattern: "/logs/", methods: get, subresources: log, gate: systemLogs, handler: s.systemLogs},
		{pattern: "/debug/pprof/", methods: getPost, subresources: proxy, gate: profiling, handler: profile},
		{pattern: "/debug/flags/v", methods: []string{http.MethodPut}, subresources: proxy, gate: flags, handler: s.setVerbosity},
	}
}

// localVolumes hands a call on to the driver of local volumes.
func (s *server) localVolumes(w http.ResponseWriter, req *http.Request) {
	if s.cfg.Calls.LocalVolumes == nil {
		http.Error(w, "this node has no local volumes", http.StatusNotFound)
		return
	}
	s.cfg.Calls.LocalVolumes.ServeHTTP(w, req)
}

// images hands a call on to the runtime's image store.
func (s *server) images(w http.ResponseWriter, req *http.Request) {
	if s.cfg.Calls.Images == nil {
		http.Error(w, "this node's agent takes no images", http.StatusNotFound)
		return
	}
	s.cfg.Calls.Images.ServeHTTP(w, req)
}

// open tells whether configuration leaves a route on.
func (s *server) open(g gate) bool {
	cfg := s.cfg.Kubelet
	switch g {
	case debugging:
		return isOn(cfg.EnableDebuggingHandlers)
	case profiling:
		return isOn(cfg.EnableDebuggingHandlers) && isOn(cfg.EnableProfilingHandler)
	case systemLogs:
		return isOn(cfg.EnableDebuggingHandlers) && isOn(cfg.EnableSystemLogHandler)
	case flags:
		return isOn(cfg.EnableDebuggingHandlers) && isOn(cfg.EnableDebugFlagsHandler)
	}
	return true
}

// isOn treats an absent switch as on, which all of these default to.
func isOn(value *bool) bool { return value == nil || *value }

// handler builds the whole API.
func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	for _, route := range s.routes() {
		var handler http.Handler = route.handler
		if !s.open(route.gate) {
			handler = http.HandlerFunc(refuse)
		}
		handler = s.counted(route, allowMethods(route.methods, handler))
		mux.Handle(route.pattern, s.traced(route, s.access.guard(route.verb, route.subresources, handler)))
	}
	// What does not exist is no one's business without permission.
	mux.Handle("/", s.access.guard("", []string{"proxy"}, http.NotFoundHandler()))
	return mux
}

// traced takes a span of each request, authentication included. It is named by
// method and pattern of its route: names of pods are attributes of spans.
func (s *server) traced(route route, next http.Handler) http.Handler {
	if s.cfg.Tracer == nil {
		return next
	}
	return tracing.WithTracing(next, s.cfg.Tracer, "/"+routeName(route.pattern))
}

// readOnlyHandler builds what the read-only port serves to anybody.
func (s *server) readOnlyHandler() http.Handler {
	mux := http.NewServeMux()
	for _, route := range s.routes() {
		if route.readOnly {
			mux.Handle(route.pattern, s.counted(route, allowMethods(route.methods, route.handler)))
		}
	}
	return mux
}

func refuse(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, "Debug endpoints are disabled.", http.StatusMethodNotAllowed)
}

func allowMethods(methods []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		for _, method := range methods {
			if method == req.Method || method == http.MethodGet && req.Method == http.MethodHead {
				next.ServeHTTP(w, req)
				return
			}
		}
		w.Header().Set("Allow", strings.Join(methods, ", "))
		http.Error(w, "405: Method Not Allowed", http.StatusMethodNotAllowed)
	})
}

func gathered(gatherer prometheus.Gatherer) http.HandlerFunc {
	if gatherer == nil {
		gatherer = prometheus.NewRegistry()
	}
	return promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}).ServeHTTP
}

func profile(w http.ResponseWriter, req *http.Request) {
	switch strings.TrimPrefix(req.URL.Path, "/debug/pprof/") {
	case "profile":
		pprof.Profile(w, req)
	case "symbol":
		pprof.Symbol(w, req)
	case "cmdline":
		pprof.Cmdline(w, req)
	case "trace":
		pprof.Trace(w, req)
	default:
		pprof.Index(w, req)
	}
}
