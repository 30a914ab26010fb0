// Package rights watches what controllers ask of an API server and tells what
// they did not declare.
package rights

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/component-helpers/auth/rbac/validation"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
)

// Recorder makes clients that act as controllers and keeps their requests. The
// zero value is ready.
type Recorder struct {
	mu    sync.Mutex
	wrong map[string]bool
	used  map[string]bool
}

// Clients makes clients that act as each controller's identity, of what makes a
// configuration for one; api.Server.As is that.
func (r *Recorder) Clients(as func(name string, groups ...string) *rest.Config) controller.Clients {
	return func(c controller.Controller) (kubernetes.Interface, metadata.Interface, error) {
		declared, err := kube.ParseRules(c.Reads + "\n" + c.Writes)
		if err != nil {
			return nil, nil, fmt.Errorf("reading what %s declares: %w", c.Name, err)
		}
		return controller.Acting(func(name string, groups ...string) *rest.Config {
			cfg := as(name, groups...)
			cfg.Wrap(func(to http.RoundTripper) http.RoundTripper {
				return &spy{to: to, of: c, user: name, declared: declared, in: r}
			})
			return cfg
		})(c)
	}
}

// Wrong are requests that were not declared, or that the server forbade.
func (r *Recorder) Wrong() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.wrong))
}

// Used are the requests seen, as "user controller verb resource".
func (r *Recorder) Used() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.used))
}

func note(in *map[string]bool, text string) {
	if *in == nil {
		*in = map[string]bool{}
	}
	(*in)[text] = true
}

type spy struct {
	to       http.RoundTripper
	of       controller.Controller
	user     string
	declared []rbacv1.PolicyRule
	in       *Recorder
}

var requests = &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}

// RoundTrip sends a request and checks it.
func (s *spy) RoundTrip(req *http.Request) (*http.Response, error) {
	info, err := requests.NewRequestInfo(req)
	if err != nil {
		return nil, err
	}
	res, err := s.to.RoundTrip(req)
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	rule := rbacv1.PolicyRule{Verbs: []string{info.Verb}, NonResourceURLs: []string{info.Path}}
	what := info.Path
	if info.IsResourceRequest {
		rule = rbacv1.PolicyRule{Verbs: []string{info.Verb}, APIGroups: []string{info.APIGroup}, Resources: []string{info.Resource}}
		if info.Subresource != "" {
			rule.Resources[0] += "/" + info.Subresource
		}
		if info.Name != "" {
			rule.ResourceNames = []string{info.Name}
		}
		what = rule.Resources[0] + "." + info.APIGroup
	}
	text := fmt.Sprintf("%s %s %s", s.of.Name, info.Verb, what)
	note(&s.in.used, s.user+" "+text)
	if ok, _ := validation.Covers(s.declared, []rbacv1.PolicyRule{rule}); !ok {
		note(&s.in.wrong, text+": not declared")
	}
	if err == nil && res.StatusCode == http.StatusForbidden && info.IsResourceRequest && info.Verb != "create" {
		note(&s.in.wrong, text+": forbidden")
	}
	return res, err
}
