package aggregation

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httputil"
	"os"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	"k8s.io/kube-aggregator/pkg/apiserver"
	listers "k8s.io/kube-aggregator/pkg/client/listers/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/status/remote"
	"k8s.io/kube-openapi/pkg/handler3"
)

// listTimeout bounds how long a foreign server may take to say which documents
// it has; who asks gets the list without it then.
const listTimeout = 2 * time.Second

// documentsRoot is where servers publish version 3 documents.
const documentsRoot = "/openapi/v3"

// Documents fetches OpenAPI version 3 documents from foreign servers when
// someone asks, as the one who asks.
type Documents struct {
	services          listers.APIServiceLister
	resolver          apiserver.ServiceResolver
	certFile, keyFile string
}

// Serves reports whether a document, named as in "apis/metrics.k8s.io/v1beta1",
// is a foreign server's.
func (d *Documents) Serves(name string) bool { return d.find(name) != nil }

func (d *Documents) find(name string) *apiregistrationv1.APIService {
	parts := strings.Split(name, "/")
	if len(parts) != 3 || parts[0] != "apis" {
		return nil
	}
	service, err := d.services.Get(parts[2] + "." + parts[1])
	if err != nil || service.Spec.Service == nil {
		return nil
	}
	return service
}

// ServeHTTP passes a request for a foreign document on.
func (d *Documents) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	service := d.find(strings.Trim(strings.TrimPrefix(r.URL.Path, documentsRoot), "/"))
	if service == nil {
		http.NotFound(w, r)
		return
	}
	carrier, host, err := d.reach(r.Context(), service)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	passer := &httputil.ReverseProxy{Transport: carrier, Rewrite: func(p *httputil.ProxyRequest) {
		p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "https", host, ""
		p.Out.Header.Del("Authorization")
	}}
	passer.ServeHTTP(w, r)
}

// List is the documents of all foreign servers that answer in time, by name.
// Each server is asked once, and only for what is registered with it.
func (d *Documents) List(ctx context.Context) map[string]handler3.OpenAPIV3DiscoveryGroupVersion {
	out := map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}
	all, err := d.services.List(labels.Everything())
	if err != nil {
		return out // the lister reads memory and has no error of its own
	}
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	byServer := map[string][]*apiregistrationv1.APIService{}
	for _, service := range all {
		if ref := service.Spec.Service; ref != nil && helper.IsAPIServiceConditionTrue(service, apiregistrationv1.Available) {
			server := fmt.Sprintf("%s/%s:%d", ref.Namespace, ref.Name, *ref.Port)
			byServer[server] = append(byServer[server], service)
		}
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, services := range byServer {
		wg.Go(func() {
			theirs, err := d.fetchDiscovery(ctx, services[0])
			if err != nil {
				return // a server without such documents is a server all the same
			}
			mu.Lock()
			defer mu.Unlock()
			for _, service := range services {
				name := "apis/" + service.Spec.Group + "/" + service.Spec.Version
				if document, ok := theirs[name]; ok {
					out[name] = document
				}
			}
		})
	}
	wg.Wait()
	return out
}

func (d *Documents) fetchDiscovery(ctx context.Context, service *apiregistrationv1.APIService) (
	map[string]handler3.OpenAPIV3DiscoveryGroupVersion,
	error) {
	carrier, host, err := d.reach(ctx, service)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+documentsRoot, nil)
	if err != nil {
		return nil, err
	}
	response, err := carrier.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("asking %s for its documents: %s", service.Name, response.Status)
	}
	var list handler3.OpenAPIV3Discovery
	if err := json.NewDecoder(response.Body).Decode(&list); err != nil {
		return nil, fmt.Errorf("reading the documents of %s: %w", service.Name, err)
	}
	return list.Paths, nil
}

// reach is the way to a foreign server, in the name of who sends the request.
func (d *Documents) reach(ctx context.Context, service *apiregistrationv1.APIService) (http.RoundTripper, string, error) {
	who, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		who = &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}
	}
	ref := service.Spec.Service
	location, err := d.resolver.ResolveEndpoint(ref.Namespace, ref.Name, *ref.Port)
	if err != nil {
		return nil, "", fmt.Errorf("finding the server of %s: %w", service.Name, err)
	}
	var cert, key []byte
	if d.certFile != "" {
		if cert, err = os.ReadFile(d.certFile); err != nil {
			return nil, "", fmt.Errorf("reading the front proxy's certificate: %w", err)
		}
		if key, err = os.ReadFile(d.keyFile); err != nil {
			return nil, "", fmt.Errorf("reading the front proxy's key: %w", err)
		}
	}
	carrier, err := transport.New(remote.BuildTransportConfig(nil, cert, key, service)) // the library keeps one per configuration
	if err != nil {
		return nil, "", fmt.Errorf("connecting to the server of %s: %w", service.Name, err)
	}
	return transport.NewAuthProxyRoundTripper(who.GetName(), who.GetUID(), who.GetGroups(), who.GetExtra(), carrier), location.Host, nil
}
