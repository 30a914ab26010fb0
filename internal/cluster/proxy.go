package cluster

import (
	"context"
	"fmt"

	"k8s.io/apiserver/pkg/authentication/user"

	proxyconfig "github.com/berth-dev/berth/internal/proxy/config"
	proxylaunch "github.com/berth-dev/berth/internal/proxy/launch"
)

// startProxy runs the service proxy on the cluster's own informers.
func (u *up) startProxy(context.Context) error {
	log, err := u.logs.part("proxy")
	if err != nil {
		return err
	}
	client := u.client // a joined node's own
	if u.Role.control() {
		if client, err = u.clientAs(user.KubeProxy); err != nil {
			return err
		}
	}
	p := proxylaunch.Process{
		NodeName: u.NodeName, Instance: u.Instance(), BridgeName: u.bridge(), Client: client, Informers: u.informers,
		Log: log, Metrics: newRegistry(), Journal: u.journal, Tracer: &u.tracer,
	}
	cfg := u.proxyConfig()
	u.keep("proxy", func(ctx context.Context) error { return proxylaunch.RunIn(ctx, p, cfg) })
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
