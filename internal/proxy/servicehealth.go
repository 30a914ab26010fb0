package proxy

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/berth-dev/berth/internal/proxy/model"
)

// rebindAfter is how long a health check port that is taken rests.
const rebindAfter = 5 * time.Second

// healthChecks serve the health check node ports of load balancer Services
// whose traffic stays on nodes with endpoints.
type healthChecks struct {
	r *runner

	mu      sync.Mutex
	wanted  map[model.Name]map[model.Family]model.HealthCheck
	servers map[model.Name]*checkServer
	addrs   []netip.Addr
	retry   *time.Timer
	stopped bool
	serving sync.WaitGroup
}

// checkServer answers for one Service on one port.
type checkServer struct {
	port    int32
	servers []*http.Server
}

func newHealthChecks(r *runner) *healthChecks {
	return &healthChecks{r: r, wanted: map[model.Name]map[model.Family]model.HealthCheck{}, servers: map[model.Name]*checkServer{}}
}

// update takes over what changed in one family.
func (h *healthChecks) update(f model.Family, checks []model.HealthCheck) {
	if len(checks) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range checks {
		of := h.wanted[c.Service]
		if of == nil {
			of = map[model.Family]model.HealthCheck{}
			h.wanted[c.Service] = of
		}
		if of[f] = c; c.Port == 0 {
			delete(of, f)
		}
		if len(of) == 0 {
			delete(h.wanted, c.Service)
		}
		h.settle(c.Service)
	}
}

// rebind opens the ports on other addresses of the node.
func (h *healthChecks) rebind(addrs []netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.Equal(h.addrs, addrs) {
		return
	}
	h.addrs = addrs
	for n, s := range h.servers {
		s.close()
		delete(h.servers, n)
	}
	for n := range h.wanted {
		h.settle(n)
	}
}

// count is the answer for a Service: its port, and how many addresses of
// ready endpoints are here in the family that has most.
func (h *healthChecks) count(n model.Name) (port int32, local int) {
	for _, c := range h.wanted[n] {
		port, local = c.Port, max(local, c.Local)
	}
	return port, local
}

// settle opens or closes the port of one Service.
func (h *healthChecks) settle(n model.Name) {
	port, _ := h.count(n)
	if s := h.servers[n]; s != nil {
		if s.port == port {
			return
		}
		s.close()
		delete(h.servers, n)
	}
	if port == 0 || h.stopped {
		return
	}
	s := &checkServer{port: port}
	for _, l := range h.listeners(n, port) {
		srv := &http.Server{Handler: h.handler(n), ReadHeaderTimeout: 10 * time.Second}
		s.servers = append(s.servers, srv)
		h.serving.Go(func() {
			if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				h.r.cfg.Log.Error("serving a health check port ended", "service", n, "port", port, "err", err)
			}
		})
	}
	if len(s.servers) > 0 {
		h.servers[n] = s
	}
}

// listeners opens the port on the addresses node ports answer on. A port
// that is taken is told in an event, and tried again.
func (h *healthChecks) listeners(n model.Name, port int32) []net.Listener {
	var out []net.Listener
	var failed error
	listen := func(network, host string) {
		l, err := net.Listen(network, net.JoinHostPort(host, strconv.Itoa(int(port))))
		if err != nil {
			failed = err
			return
		}
		out = append(out, l)
	}
	for _, f := range h.r.does {
		network := map[model.Family]string{model.V4: "tcp4", model.V6: "tcp6"}[f]
		if h.r.everywhere[f] {
			listen(network, "")
			continue
		}
		for _, a := range h.addrs { // none yet: rebind comes when there are any
			if f.Has(a) {
				listen(network, a.String())
			}
		}
	}
	if failed != nil && len(out) == 0 {
		h.r.cfg.Log.Error("opening a health check port", "service", n, "port", port, "err", failed)
		h.r.events.portTaken(n, port, failed)
		if h.retry == nil {
			h.retry = time.AfterFunc(rebindAfter, func() { h.r.ask(h.again) })
		}
	}
	return out
}

// again tries the ports that could not be opened.
func (h *healthChecks) again() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.retry = nil
	for n := range h.wanted {
		if h.servers[n] == nil {
			h.settle(n)
		}
	}
}

func (h *healthChecks) stop() {
	h.mu.Lock()
	h.stopped = true
	if h.retry != nil {
		h.retry.Stop()
	}
	for _, s := range h.servers {
		s.close()
	}
	h.mu.Unlock()
	h.serving.Wait()
}

func (s *checkServer) close() {
	for _, srv := range s.servers {
		_ = srv.Close()
	}
}

// serviceHealth is the body load balancers and people read.
type serviceHealth struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}

func (h *healthChecks) handler(n model.Name) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h.mu.Lock()
		_, local := h.count(n)
		h.mu.Unlock()
		status, _ := h.r.health(time.Now())
		body := serviceHealth{LocalEndpoints: local, ServiceProxyHealthy: status.Healthy}
		body.Service.Namespace, body.Service.Name = n.Namespace, n.Name
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(local))
		if local == 0 || !status.Healthy {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(body)
	})
}
