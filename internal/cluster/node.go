package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/cluster/host"
	"github.com/berth-dev/berth/internal/control/schedule"
	"github.com/berth-dev/berth/internal/control/workload"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
	podnetwork "github.com/berth-dev/berth/internal/network"
	"github.com/berth-dev/berth/internal/nodes"
	nodeslaunch "github.com/berth-dev/berth/internal/nodes/launch"
	proxyconfig "github.com/berth-dev/berth/internal/proxy/config"
	proxylaunch "github.com/berth-dev/berth/internal/proxy/launch"
)

// controllers are those that --controllers may name.
func controllers() []controller.Controller { return slices.Concat(nodes.List(), workload.List()) }

// startControllers runs the scheduler and the controllers on the cluster's own
// client and one set of informers.
func (u *up) startControllers(parts context.Context) error {
	log, err := u.logs.part("controllers")
	if err != nil {
		return err
	}
	schedLog, err := u.logs.part("scheduler")
	if err != nil {
		return err
	}
	u.metrics = newRegistry()
	u.storeMetrics(u.metrics)
	registry := u.metrics
	if err := u.serveMetrics(parts, registry); err != nil {
		return err
	}
	enabled, err := controller.Choose(u.Controllers, controllers()...)
	if err != nil {
		return err
	}
	nodesConfig, watchCloud, err := u.nodeOptions(enabled).Build(parts, nodeslaunch.Shared{
		Client: u.client, Informers: u.informers, Log: log, Journal: u.journal, Metrics: registry, Recorders: kube.NewRecorders(parts), Clients: controller.Impersonating(u.admin), Board: &u.board,
	})
	if err != nil {
		return err
	}
	if watchCloud != nil {
		u.crew.start(parts, part{"machine inventory", watchCloud})
	}
	nodeControllers, err := nodes.Controllers(nodesConfig)
	if err != nil {
		return err
	}
	controllers, err := u.workloadConfig(log, registry)
	if err != nil {
		return err
	}
	controllers.Enabled, controllers.Clients = enabled, controller.Impersonating(u.admin)
	var deciders []part
	for _, c := range nodeControllers {
		deciders = append(deciders, part{c.Name, c.Run})
	}
	deciders = append(deciders,
		part{"scheduler", func(ctx context.Context) error {
			return schedule.Run(ctx, schedule.Config{Client: u.client, Informers: u.informers, Log: schedLog, Journal: u.journal, Metrics: registry})
		}},
		part{"controllers", func(ctx context.Context) error { return workload.Run(ctx, controllers) }})
	u.startDeciders(parts, log, deciders)
	u.informers.Start(parts.Done())
	return nil
}

// nodeOptions is the command line that `berth controllers` would have in this
// cluster.
func (c *Config) nodeOptions(enabled controller.Enabled) *nodeslaunch.Options {
	o := nodeslaunch.NewOptions()
	o.Health = c.NodeHealth
	o.Generic.Controllers = nil
	for _, name := range nodes.Names() {
		if !enabled(name) {
			name = "-" + name
		}
		o.Generic.Controllers = append(o.Generic.Controllers, name)
	}
	o.Shared.AllocateNodeCIDRs, o.Shared.ClusterCIDR, o.ServiceRange = true, c.ClusterCIDR, c.ServiceCIDR
	o.Shared.CloudProvider.Name, o.Shared.CloudProvider.CloudConfigFile = c.CloudProvider, c.CloudConfig
	return o
}

// startDeciders runs what only one server of a cluster may run: at once where
// the store is this server's own (it is alone then, and a restart must not wait
// for the lease of its last life), and while it leads where the store is shared.
func (u *up) startDeciders(parts context.Context, log *slog.Logger, deciders []part) {
	if u.store.Embedded() {
		for _, p := range deciders {
			u.crew.start(parts, p)
		}
		return
	}
	election := kube.Election{
		Client: u.client, Namespace: metav1.NamespaceSystem, Name: "berth-server", Identity: u.NodeName + "_" + string(uuid.NewUUID()),
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		Log: log, Events: kube.Events(parts, u.client)("berth-server"),
	}
	u.crew.start(parts, part{"leader election", func(ctx context.Context) error {
		return kube.Lead(ctx, election, func(ctx context.Context) error {
			team := crew{log: u.log}
			for _, p := range deciders {
				team.start(ctx, p)
			}
			<-ctx.Done()
			team.wait()
			return nil
		})
	}})
}

// workloadConfig gives the workload controllers the cluster's client and CA.
func (u *up) workloadConfig(log *slog.Logger, metrics prometheus.Registerer) (workload.Config, error) {
	cfg := workload.Config{Client: u.client, Discovery: u.client.Discovery(), Informers: u.informers, Log: log, Journal: u.journal, Metrics: metrics}
	var err error
	if cfg.Metadata, err = metadata.NewForConfig(u.admin); err != nil {
		return cfg, fmt.Errorf("making the controllers' client: %w", err)
	}
	if cfg.RootCA, err = os.ReadFile(u.files.CA.Cert); err != nil {
		return cfg, fmt.Errorf("reading the cluster's authority: %w", err)
	}
	cfg.SigningCert, cfg.SigningMost = cfg.RootCA, u.CertificateLife
	if cfg.SigningKey, err = os.ReadFile(u.files.CA.Key); err != nil {
		return cfg, fmt.Errorf("reading the key of the cluster's authority: %w", err)
	}
	cfg.NoLoadBalancer, cfg.ReservedPorts = u.LoadBalancer == LoadBalancerNone, u.reservedPorts()
	return cfg, u.servingConfig(&cfg)
}

// startNode runs the agent and the proxy and waits for the node to be Ready.
func (u *up) startNode(ctx, parts context.Context) error {
	log, err := u.logs.part("agent")
	if err != nil {
		return err
	}
	if u.bridge() != "" {
		// Before the policies and the proxy look whether they can count on it.
		switch loaded, err := host.LoadBridgeFilter(ctx); {
		case err != nil:
			u.clock.note("node", fmt.Sprintf("policies do not hold between pods on one bridge: %v", err))
		case loaded:
			u.log.Info("loaded br_netfilter, so that packets between pods on one bridge pass the rules of Services and policies")
		}
	}
	if err := u.startNetwork(parts); err != nil {
		return err
	}
	if err := u.startPorts(); err != nil {
		return err
	}
	if err := u.startPolicy(parts); err != nil {
		return err
	}
	run, err := u.agentPart(log)
	if err != nil {
		return err
	}
	if err := u.startProxy(parts); err != nil {
		return err
	}
	ended := make(chan error, refusals)
	u.crew.start(parts, part{"agent", func(ctx context.Context) error {
		err := run(ctx)
		select {
		case ended <- err:
		default: // it was read long enough
		}
		return err
	}})
	return u.clock.stage("node", func() (string, error) {
		state, err := u.waitNodeReady(ctx, ended)
		if err != nil {
			return "", err
		}
		if u.requestsServing() {
			err = u.waitServing(ctx)
		}
		if err == nil && u.Role.control() {
			err = u.nameRole(ctx)
		}
		return state, err
	})
}

// waitServing returns when the agent's API can be reached: its certificate is
// requested and approved while the node is already Ready, and until then
// nobody could read logs. A cluster whose approver is slow is no failure.
func (u *up) waitServing(ctx context.Context) error {
	// Whether there is a certificate is the question, not whose: the CA of agents' servers is not known to nodes, this is the
	// machine's own agent, and nothing is sent to it. Without one it ends the handshake.
	dialer := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}} //nolint:gosec // see above
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(u.NodeIP, strconv.Itoa(u.Ports.Agent)))
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			u.clock.note("node", "its serving certificate is not approved yet: until then logs and exec do not work (kubectl get csr)")
			return nil
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// startProxy runs the service proxy on the cluster's own informers.
func (u *up) startProxy(parts context.Context) error {
	log, err := u.logs.part("proxy")
	if err != nil {
		return err
	}
	p := proxylaunch.Process{
		NodeName: u.NodeName, Instance: u.Instance(), BridgeName: u.bridge(), Client: u.client, Informers: u.informers,
		Log: log, Metrics: newRegistry(), Journal: u.journal, Tracer: &u.tracer,
	}
	cfg := u.proxyConfig()
	u.crew.start(parts, part{"proxy", func(ctx context.Context) error { return proxylaunch.RunIn(ctx, p, cfg) }})
	return nil
}

// proxyConfig is the proxy's configuration in a cluster of our own. The process
// is the agent's too: its score is what the agent's configuration says.
func (u *up) proxyConfig() *proxyconfig.KubeProxyConfiguration {
	c := &proxyconfig.KubeProxyConfiguration{
		HostnameOverride: u.NodeName, ClusterCIDR: u.ClusterCIDR, OOMScoreAdj: u.agent.Effective.Kubelet.OOMScoreAdj,
		HealthzBindAddress: fmt.Sprintf(":%d", u.Ports.ProxyHealthz), MetricsBindAddress: fmt.Sprintf("127.0.0.1:%d", u.Ports.ProxyMetrics),
	}
	proxyconfig.Defaults(c)
	return c
}

// nameRole labels this node as what it is. A node may not claim a role for
// itself (NodeRestriction), so the cluster does it.
func (u *up) nameRole(ctx context.Context) error {
	patch := []byte(`{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`)
	_, err := u.client.CoreV1().Nodes().Patch(ctx, u.NodeName, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: "berth-up"})
	if err != nil {
		return fmt.Errorf("labelling the node: %w", err)
	}
	return nil
}

// refusals is how often in a row the agent may end before a start is given up.
// What does not pass by itself, such as a configuration that does not fit the
// machine, is told within two seconds then, and a runtime that stumbles is not
// taken for it.
const refusals = 3

// waitNodeReady returns when the Node object says Ready, in words of this
// start: what an earlier one left there proves nothing. ended tells each time
// that the agent ends.
// A node whose network is somebody else's may wait for that: it can only be
// installed once the cluster is up.
func (u *up) waitNodeReady(ctx context.Context, ended <-chan error) (state string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	since := u.clock.began.Truncate(time.Second) // as times are in objects
	words := make(chan v1.NodeCondition)
	look := func(obj any) {
		n, ok := obj.(*v1.Node)
		if !ok || n.Name != u.NodeName {
			return
		}
		for _, c := range n.Status.Conditions {
			if c.Type != v1.NodeReady || c.LastHeartbeatTime.Time.Before(since) {
				continue
			}
			select {
			case words <- c:
			case <-ctx.Done():
			}
		}
	}
	inf := u.informers.Core().V1().Nodes().Informer()
	reg, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: look, UpdateFunc: func(_, obj any) { look(obj) }})
	if err != nil {
		return "", fmt.Errorf("watching the node: %w", err)
	}
	defer inf.RemoveEventHandler(reg) //nolint:errcheck // the informer may be gone
	last := "the agent did not report"
	for ends := 0; ; {
		select {
		case c := <-words:
			if c.Status == v1.ConditionTrue {
				return "Ready", nil
			}
			if last = c.Message; u.Network == podnetwork.None && strings.HasPrefix(last, "container runtime network not ready") {
				return "not Ready before a pod network is installed: its CNI configuration goes to " + u.Layout().CNIConfDir(), nil
			}
		case err := <-ended:
			if err == nil {
				continue // it was asked to: this start ends too
			}
			last = err.Error()
			if ends++; ends == refusals {
				return "", fmt.Errorf("the agent ended %d times in a row: %w (see logs/agent.log in the data directory)", ends, err)
			}
		case <-ctx.Done():
			return "", fmt.Errorf("the node is not Ready: %s (see logs/agent.log in the data directory): %w", last, ctx.Err())
		}
	}
}

// status gathers the answer of the control socket.
func (u *up) status(ctx context.Context) Status {
	u.mu.Lock()
	ready, readyIn := u.ready, u.readyIn
	u.mu.Unlock()
	s := Status{
		PID: os.Getpid(), Since: u.clock.began, DataDir: u.DataDir, Instance: u.Instance(), Settings: u.Settings, NodeIP: u.NodeIP,
		Ready: ready, ReadyIn: readyIn, Parts: u.crew.snapshot(), Notes: append(u.facts.Notes(), u.notes...),
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
	_, err := u.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	check("api", err)
	for _, p := range []struct {
		name, url string
		here      bool
	}{
		{"controllers", fmt.Sprintf("http://127.0.0.1:%d/healthz", u.Ports.Metrics), u.Role.control()},
		{"agent", fmt.Sprintf("http://127.0.0.1:%d/healthz", u.Ports.AgentHealthz), u.Role.node()},
		{"proxy", fmt.Sprintf("http://127.0.0.1:%d/livez", u.Ports.ProxyHealthz), u.Role.node()},
	} {
		if p.here {
			check(p.name, probe(ctx, p.url))
		}
	}
	return s
}

func trimUnix(endpoint string) string { return strings.TrimPrefix(endpoint, "unix://") }
