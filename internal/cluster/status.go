package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/manifests"
	"github.com/berth-dev/berth/internal/nodes/health"
	"github.com/berth-dev/berth/internal/snapshot"
	"github.com/berth-dev/berth/internal/socket"
	"github.com/berth-dev/berth/internal/supervise"
)

// Status is what a running cluster says of itself on its control socket.
type Status struct {
	PID      int               `json:"pid"`
	Since    time.Time         `json:"since"`
	DataDir  string            `json:"dataDir"`
	Instance string            `json:"instance"`
	Settings Settings          `json:"settings"`
	NodeIP   string            `json:"nodeIP"`
	Runtime  string            `json:"runtime"`
	RuntimeP int               `json:"runtimePID,omitempty"`
	Ready    bool              `json:"ready"`
	ReadyIn  time.Duration     `json:"readyIn,omitempty"`
	Parts    []supervise.State `json:"parts"`
	Checks   []Check           `json:"checks"`
	// Certificates are those this host renews, soonest first.
	Certificates []certificateEnd `json:"certificates,omitempty"`
	// Snapshots is how their schedule stands.
	Snapshots *snapshot.Progress `json:"snapshots,omitempty"`
	// Manifests is how the directory of manifests stands; nil without one.
	Manifests *manifests.Status `json:"manifests,omitempty"`
	// Notes are limits of the host that berth adapted to.
	Notes []string `json:"notes,omitempty"`
}

// APIURL is the API server as other hosts see it.
func (s *Status) APIURL() string {
	if s.Settings.ServerURL != "" {
		return s.Settings.ServerURL
	}
	return "https://" + net.JoinHostPort(s.NodeIP, strconv.Itoa(s.Settings.Ports.API))
}

// Check is one health answer.
type Check struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Detail says what is wrong, or something useful.
	Detail string `json:"detail,omitempty"`
}

// ControlSocket is where the cluster on dataDir answers questions.
func ControlSocket(dataDir string) string { return dataDir + "/run/berth.sock" }

// serveStatus answers on the control socket until ctx ends.
func (u *up) serveStatus(context.Context) error {
	l, err := socket.Listen("control", ControlSocket(u.DataDir))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(u.status(r.Context())); err != nil {
			u.log.Debug("answering a status request", "err", err)
		}
	})
	mux.Handle("GET /proxy/", &u.tracer)
	u.serveRotation(mux)
	u.serveSnapshots(mux)
	mux.Handle("GET /journal", health.WhyHandler(u.journal.Query, &u.board))
	mux.HandleFunc("GET /journal/follow", u.followJournal)
	// Only root reaches this socket, so profiles may be taken at any time.
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	u.keep("control socket", func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, func() { srv.Close() })
		defer stop()
		return srv.Serve(l)
	})
	return nil
}

// status gathers the answer of the control socket.
func (u *up) status(ctx context.Context) Status {
	u.mu.Lock()
	ready, readyIn := u.ready, u.readyIn
	u.mu.Unlock()
	s := Status{
		PID: os.Getpid(), Since: u.clock.began, DataDir: u.DataDir, Instance: u.Instance(), Settings: u.Settings, NodeIP: u.NodeIP,
		Ready: ready, ReadyIn: readyIn, Parts: u.parts.States(), Notes: append(u.facts.Notes(), u.notes...),
	}
	if u.runtime != nil {
		s.RuntimeP = u.runtime.PID()
		s.Runtime = fmt.Sprintf("containerd (bundled), process %d, %s, %s", s.RuntimeP, u.runtime.OCIRuntime, u.runtime.Snapshotter)
	} else {
		s.Runtime = u.RuntimeEndpoint
	}
	if ends := u.ends.Load(); ends != nil {
		s.Certificates = *ends
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	check := func(name string, err error) {
		c := Check{Name: name, OK: err == nil}
		if err != nil {
			c.Detail = err.Error()
		}
		s.Checks = append(s.Checks, c)
	}
	if u.store != nil {
		check("store", u.store.Health(ctx))
		check("store room", u.store.HasRoom())
		if usage := u.store.Usage(); usage.Warn() {
			s.Notes = append(s.Notes, "the store is nearly full: "+usage.String())
		}
	}
	if s.Snapshots = u.snapshots.Load(); s.Snapshots != nil {
		line, ok := s.Snapshots.Line(time.Now())
		s.Checks = append(s.Checks, Check{Name: "snapshots", OK: ok, Detail: line})
	}
	if u.manifests != nil {
		m := u.manifests.Status()
		line, ok := m.Line()
		s.Manifests, s.Checks = &m, append(s.Checks, Check{Name: "manifests", OK: ok, Detail: line})
	}
	_, err := u.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	check("api", err)
	for _, p := range []struct {
		name, url string
		here      bool
	}{
		{"controllers", fmt.Sprintf("https://127.0.0.1:%d/healthz", u.Ports.Metrics), u.Role.control()},
		{"agent", fmt.Sprintf("http://127.0.0.1:%d/healthz", u.Ports.AgentHealthz), u.Role.node()},
		{"proxy", fmt.Sprintf("http://127.0.0.1:%d/livez", u.Ports.ProxyHealthz), u.Role.node()},
	} {
		if p.here {
			check(p.name, probe(ctx, u.ownPorts(), p.url))
		}
	}
	return s
}

// Ask returns the status of the cluster that runs on dataDir.
func Ask(ctx context.Context, dataDir string) (*Status, error) {
	var s Status
	if err := ask(ctx, dataDir, "/status", &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// Why returns the decisions that the cluster on dataDir took about an object,
// oldest first. Empty fields of ref match everything. Of a cluster that is
// stopped it returns what the journal on disk holds.
func Why(ctx context.Context, dataDir string, ref journal.Ref) ([]journal.Record, error) {
	journals := filepath.Join(dataDir, "journal")
	if _, err := os.Stat(journals); err == nil && Running(dataDir) == 0 {
		return journal.Read(journals, ref), nil
	}
	q := url.Values{"kind": {ref.Kind}, "namespace": {ref.Namespace}, "name": {ref.Name}}
	var records []journal.Record
	return records, ask(ctx, dataDir, "/journal?"+q.Encode(), &records)
}

// ask gets JSON from the control socket.
func ask(ctx context.Context, dataDir, path string, into any) error {
	client := &http.Client{
		Timeout: 10 * time.Second,
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", ControlSocket(dataDir))
		}},
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://berth"+path, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("asking the cluster on %s: %w", dataDir, err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("asking the cluster on %s: %w", dataDir, err)
	}
	return nil
}

// Print writes the status for a person.
func (s *Status) Print(w io.Writer, now time.Time) {
	state := "starting"
	if s.Ready {
		state = fmt.Sprintf("ready (in %d ms)", s.ReadyIn.Milliseconds())
	}
	fmt.Fprintf(w, "cluster   %s, %s, up %s, process %d\n", s.Instance, state, now.Sub(s.Since).Round(time.Second), s.PID)
	fmt.Fprintf(w, "data      %s\n", s.DataDir)
	if s.Settings.Role.control() {
		fmt.Fprintf(w, "api       https://127.0.0.1:%d  (kubeconfig %s/admin.kubeconfig)\n", s.Settings.Ports.API, s.DataDir)
	} else {
		fmt.Fprintf(w, "api       %s\n", s.APIURL())
	}
	fmt.Fprintf(w, "node      %s at %s, pods %s, services %s, domain %s\n", s.Settings.NodeName, s.NodeIP, s.Settings.ClusterCIDR,
		s.Settings.ServiceCIDR, s.Settings.ClusterDomain)
	p := s.Settings.Ports
	fmt.Fprintf(w, "ports     api %d, agent %d (health %d), proxy health %d, proxy metrics %d, controllers %d\n", p.API, p.Agent,
		p.AgentHealthz, p.ProxyHealthz, p.ProxyMetrics, p.Metrics)
	fmt.Fprintf(w, "runtime   %s\n", s.Runtime)
	for _, c := range s.Checks {
		mark := "ok"
		if !c.OK {
			mark = "BAD"
		}
		fmt.Fprintf(w, "check     %-4s %-12s %s\n", mark, c.Name, c.Detail)
	}
	if s.Manifests != nil {
		for _, f := range s.Manifests.Faults {
			fmt.Fprintf(w, "manifest  %s\n", f)
		}
	}
	for _, part := range s.Parts {
		extra := ""
		if part.Restarts > 0 {
			extra = fmt.Sprintf(", restarted %d times, last: %s", part.Restarts, part.LastError)
		}
		fmt.Fprintf(w, "part      %-32s running %s%s\n", part.Name, now.Sub(part.Since).Round(time.Second), extra)
	}
	if len(s.Certificates) > 0 {
		c := s.Certificates[0]
		fmt.Fprintf(w, "certs     next end %s (%s), renewed by itself from %s\n", c.End.Local().Format(time.DateTime), c.Name,
			c.Renewal.Local().Format(time.DateTime))
	}
	for _, n := range s.Notes {
		fmt.Fprintf(w, "note      %s\n", n)
	}
}
