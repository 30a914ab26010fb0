// Package api is the API server: the kinds of package kinds, turned into
// storages and served by the generic API server library over etcd.
package api

import (
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/berth-dev/berth/internal/control/api/nodelink"
	"github.com/berth-dev/berth/internal/control/store"
)

// Config is what the API server needs from outside. Files are read at start;
// serving certificate and client CA are re-read when they change.
type Config struct {
	// Store holds the objects. The server does not close it.
	Store *store.Store

	// BindAddress and Port are where the server listens; an empty address means
	// all interfaces, port 0 any free port. Listener replaces both.
	BindAddress string
	Port        int
	Listener    net.Listener
	// AdvertiseAddress is where cluster members reach this server. It becomes
	// the endpoint of the service default/kubernetes. Nil means the bind
	// address, or the host's first address when that is unspecified or
	// loopback. A host without any other address leaves the service without
	// endpoints: none may be a loopback address.
	AdvertiseAddress net.IP

	// ServiceCIDRs are one or two ranges (one per IP family) for service
	// addresses; the first address of the first range is the API service's.
	ServiceCIDRs []string
	// NodePortRange is "first-last"; empty means 30000-32767.
	NodePortRange string

	// ProxyToLoopback lets the proxy subresources reach loopback addresses. It
	// is for clusters whose pods live there (tests): anyone who may proxy then also
	// reaches what listens on the server's own loopback.
	ProxyToLoopback bool
	// LocalAgent is the agent that runs in this process, if any: the only one
	// that may be reached on a loopback address.
	LocalAgent nodelink.LocalAgent

	// PriorityAndFairness queues requests by priority and sender (flow schemas)
	// where the server otherwise only bounds how many run at once. It costs
	// some 20 MiB; clusters of many hosts want it.
	PriorityAndFairness bool

	// Options are the administrator's choices; nil: no audit, no encryption, the
	// default plugins.
	Options *Options

	PKI PKI
	Log *slog.Logger
}

// PKI names the key material, all PEM files.
type PKI struct {
	// ClientCA signs client certificates the server trusts.
	ClientCA string
	// ServingCert and ServingKey are what the server shows.
	ServingCert, ServingKey string
	// ServiceAccountKey signs service account tokens;
	// ServiceAccountPublicKeys verify them (the signing key's public half is
	// always included).
	ServiceAccountKey        string
	ServiceAccountPublicKeys []string
	// ServiceAccountIssuer is the tokens' "iss" claim and audience.
	ServiceAccountIssuer string
	// KubeletClientCert and KubeletClientKey authenticate to node agents, whose
	// certificates KubeletCA verifies.
	KubeletCA, KubeletClientCert, KubeletClientKey string
	// FrontProxyCA verifies, and FrontProxyCert/Key identify, a proxy in front
	// of an API server that passes user names in headers.
	FrontProxyCA, FrontProxyCert, FrontProxyKey string
}

const (
	defaultServiceCIDR   = "10.0.0.0/24"
	defaultNodePortRange = "30000-32767"
	defaultIssuer        = "https://kubernetes.default.svc.cluster.local"
)

// complete fills in defaults and rejects what cannot work.
func (c *Config) complete() error {
	if c.Store == nil {
		return errors.New("configuring API server: no store")
	}
	for name, file := range map[string]string{
		"client CA": c.PKI.ClientCA, "serving certificate": c.PKI.ServingCert, "serving key": c.PKI.ServingKey,
	} {
		if file == "" {
			return fmt.Errorf("configuring API server: no %s file", name)
		}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Options == nil {
		c.Options = NewOptions()
		c.Options.Audit.LogOptions.Path, c.Options.Fairness = "", c.PriorityAndFairness
	}
	c.PriorityAndFairness = c.Options.Fairness
	if err := c.Options.Validate(); err != nil {
		return fmt.Errorf("configuring API server: %w", err)
	}
	if len(c.ServiceCIDRs) == 0 {
		c.ServiceCIDRs = []string{defaultServiceCIDR}
	}
	if len(c.ServiceCIDRs) > 2 {
		return fmt.Errorf("configuring API server: %d service ranges, at most two are allowed", len(c.ServiceCIDRs))
	}
	for _, cidr := range c.ServiceCIDRs {
		if _, _, err := net.ParseCIDR(cidr); err != nil {
			return fmt.Errorf("configuring API server: service range: %w", err)
		}
	}
	if c.NodePortRange == "" {
		c.NodePortRange = defaultNodePortRange
	}
	if c.PKI.ServiceAccountIssuer == "" {
		c.PKI.ServiceAccountIssuer = defaultIssuer
	}
	return nil
}
