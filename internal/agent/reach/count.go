package reach

import (
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// NewRequests makes the counter of requests to API servers, by what they ask
// for. Several Reaches may share it.
func NewRequests() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_agent_api_requests_total", Help: "Requests to API servers, by resource and verb.",
	}, []string{"resource", "verb"})
}

// count counts one request.
func (r *Reach) count(req *http.Request) {
	if r.cfg.Requests != nil {
		r.cfg.Requests.WithLabelValues(kindOf(req)).Inc()
	}
}

// kindOf reads from a request's path and query what it asks for, such as
// "pods/status", "patch". Paths that are no resources are "other".
func kindOf(req *http.Request) (resource, verb string) {
	rest, ok := strings.CutPrefix(req.URL.Path, "/api/v1/")
	if !ok {
		if rest, ok = strings.CutPrefix(req.URL.Path, "/apis/"); ok {
			_, rest, _ = strings.Cut(rest, "/")  // group
			_, rest, ok = strings.Cut(rest, "/") // version
		}
	}
	if !ok {
		return "other", strings.ToLower(req.Method)
	}
	parts := strings.Split(rest, "/")
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	resource = parts[0]
	if len(parts) > 2 {
		resource += "/" + parts[2]
	}
	return resource, verbOf(req, len(parts) > 1)
}

func verbOf(req *http.Request, named bool) string {
	switch req.Method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodGet:
		switch q := req.URL.Query(); {
		case q.Has("watch") && q.Get("watch") != "false":
			return "watch"
		case named:
			return "get"
		}
		return "list"
	}
	return strings.ToLower(req.Method)
}
