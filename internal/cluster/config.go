// Package cluster brings a whole cluster up on one host and takes it down
// again: it checks the host, makes the certificates, runs the container
// runtime and every part of berth in order, and tells the user how it goes.
package cluster

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/cluster/containerd"
	"github.com/berth-dev/berth/internal/cluster/host"
	"github.com/berth-dev/berth/internal/control/api"
	"github.com/berth-dev/berth/internal/controller"
	podnetwork "github.com/berth-dev/berth/internal/network"
	"github.com/berth-dev/berth/internal/nodes/cloud/inventory"
	"github.com/berth-dev/berth/internal/nodes/health"
)

// dataVersion is the version of the data directory's layout. A directory of a
// newer version is refused: this berth could not know what it would break.
const dataVersion = 1

// Ports are those a cluster listens on, TCP where nothing else is said. Zero
// means the default.
type Ports struct {
	API          int `json:"api"`          // API server, all addresses
	Agent        int `json:"agent"`        // agent API, all addresses
	AgentHealthz int `json:"agentHealthz"` // agent health, loopback
	ProxyHealthz int `json:"proxyHealthz"` // proxy health, all addresses
	ProxyMetrics int `json:"proxyMetrics"` // proxy metrics, loopback
	Metrics      int `json:"metrics"`      // controllers' and scheduler's metrics and health, loopback
	DNS          int `json:"dns"`          // cluster DNS, UDP and TCP, on the node's address
	WireGuard    int `json:"wireGuard"`    // UDP, all addresses, with network wireguard
}

// DefaultPorts are the ports upstream's parts use.
var DefaultPorts = Ports{API: 6443, Agent: 10250, AgentHealthz: 10248, ProxyHealthz: 10256, ProxyMetrics: 10249, Metrics: 10257, DNS: 10053,
	WireGuard: 51820}

// PortsFrom gives consecutive ports starting at first.
func PortsFrom(first int) Ports {
	return Ports{API: first, Agent: first + 1, AgentHealthz: first + 2, ProxyHealthz: first + 3, ProxyMetrics: first + 4,
		Metrics: first + 5, DNS: first + 6, WireGuard: first + 7}
}

// Settings are what a cluster keeps for life: they are written to the data
// directory at the first start, and a later start without flags uses them.
type Settings struct {
	Version int `json:"version"`
	// Name is what the user calls this cluster; empty for one that goes by its
	// directory.
	Name string `json:"name,omitempty"`
	// Ephemeral is a cluster to throw away: its store does not wait for the
	// disk.
	Ephemeral bool `json:"ephemeral,omitempty"`
	// Role is what this host is to the cluster.
	Role Role `json:"role,omitempty"`
	// ServerURL is the API server of the cluster this node joined.
	ServerURL     string `json:"serverURL,omitempty"`
	ClusterCIDR   string `json:"clusterCIDR"`
	ServiceCIDR   string `json:"serviceCIDR"`
	ClusterDomain string `json:"clusterDomain"`
	NodeName      string `json:"nodeName"`
	// Network is how packets of pods reach other nodes; it may change.
	Network podnetwork.Mode `json:"network,omitempty"`
	Ports   Ports           `json:"ports"`
	// LoadBalancer is what gives addresses to Services; empty is "node".
	LoadBalancer string `json:"loadBalancer,omitempty"`
	// LoadBalancerPools are --load-balancer-pool; all servers need the same.
	LoadBalancerPools []string `json:"loadBalancerPools,omitempty"`
	// VolumesDir holds this node's local volumes; "none" is a node without.
	VolumesDir string `json:"volumesDir,omitempty"`
	// RuntimeEndpoint is a CRI socket of a runtime that is already there;
	// empty: the bundled containerd. It is kept because `berth down` must find
	// the containers again.
	RuntimeEndpoint string `json:"runtimeEndpoint,omitempty"`
	// AgentConfig is a file with a KubeletConfiguration, to lay below what the
	// cluster sets itself.
	AgentConfig string `json:"agentConfig,omitempty"`
	// CredentialProviders and CredentialProviderDir are the configuration of
	// image credential plugins and the directory they lie in; both or none.
	CredentialProviders   string `json:"credentialProviders,omitempty"`
	CredentialProviderDir string `json:"credentialProviderDir,omitempty"`
	// Hardened takes from containers the capabilities that the runtime gives by
	// default and few programs need, unless they ask for them. Nil: as before.
	Hardened *bool `json:"hardened,omitempty"`
	// Registries is a registries.yaml; empty for the first of those in the data
	// directory and in /etc/berth.
	Registries string `json:"registries,omitempty"`
	// ContainerdConfigDir holds configuration files that the bundled containerd
	// merges into its own; empty for containerd.d in the data directory.
	ContainerdConfigDir string `json:"containerdConfigDir,omitempty"`
}

// Config is everything `berth up` can be told. Empty fields get defaults from
// Complete.
type Config struct {
	Settings
	DataDir string
	// NodeIP is this node's address; empty: that of the default route.
	NodeIP string
	// ServerNames are further names and addresses in the API server's
	// certificate.
	ServerNames []string
	// CertificateLife is how long the certificates are valid that this host
	// makes and that the cluster signs for nodes; 0 is a year. They are renewed
	// while the cluster runs, when a sixth of it is left.
	CertificateLife time.Duration
	// ManualServing leaves the approval of agents' serving certificates to
	// people.
	ManualServing bool
	// Join is used by a node's first start.
	Join Join
	// NetworkPolicy enforces NetworkPolicy on this node.
	NetworkPolicy bool
	// NodeHealth says when a silent node is given up; the zero value is
	// health.Defaults.
	NodeHealth health.Settings
	// CloudProvider is "inventory" to follow the hosts that CloudConfig, a
	// file or an https:// address, lists; both empty: there is no cloud.
	CloudProvider, CloudConfig string
	// Controllers says which controllers run, as --controllers does.
	Controllers []string
	// Restart replaces this process by a new one of the same command, and
	// returns only if it cannot; nil ends the cluster where it would be called.
	Restart func() error
	// NRI lets plugins of the bundled runtime change containers; NoCDI ignores
	// device specifications.
	NRI, NoCDI bool
	// BundleDir holds containerd, its shim, the CNI plugins and images/.
	BundleDir string
	// ImagesDir holds the OCI archives to import; empty: BundleDir/images.
	ImagesDir string
	// EtcdServers, if any, are used instead of the embedded store.
	EtcdServers                           []string
	EtcdCAFile, EtcdCertFile, EtcdKeyFile string
	// APIServer are the flags of the API server; nil: their defaults.
	APIServer *api.Options
	LogFormat string
	LogLevel  string
	// Snapshots are saved while the cluster runs.
	Snapshots Snapshots
}

// Complete fills in what was not given: first from the data directory's own
// settings, then from defaults. It changes nothing on disk. Settings that were
// given and differ from the stored ones are refused where a running cluster
// depends on them.
func (c *Config) Complete() error {
	if c.DataDir == "" {
		c.DataDir = host.DefaultDataDir
	}
	abs, err := filepath.Abs(c.DataDir)
	if err != nil {
		return fmt.Errorf("--data-dir %q: %w", c.DataDir, err)
	}
	c.DataDir = abs
	if err := c.socketsFit(); err != nil {
		return err
	}
	kept, err := c.stored()
	if err != nil {
		return err
	}
	if err := c.absolutePaths(); err != nil {
		return err
	}
	if err := c.Role.mustBe(kept); err != nil {
		return err
	}
	if err := c.Settings.merge(kept); err != nil {
		return err
	}
	c.Settings.Ports.fill(DefaultPorts)
	if c.Role.control() {
		c.Settings.defaults(c.Instance())
	} else if err := c.completeJoin(); err != nil {
		return err
	}
	if c.NodeName == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("reading the host name: %w; give --node-name", err)
		}
		c.NodeName = strings.ToLower(strings.TrimSpace(name))
	}
	if c.NodeIP == "" {
		if c.NodeIP, err = defaultRouteIP(); err != nil {
			return err
		}
	} else if net.ParseIP(c.NodeIP) == nil {
		return fmt.Errorf("--node-ip %q: not an IP address", c.NodeIP)
	}
	if c.BundleDir == "" {
		exe, err := os.Executable()
		if err != nil {
			return fmt.Errorf("finding the runtime bundle: %w; give --bundle-dir", err)
		}
		c.BundleDir = filepath.Dir(exe)
	}
	if c.BundleDir, err = filepath.Abs(c.BundleDir); err != nil {
		return fmt.Errorf("--bundle-dir: %w", err)
	}
	if c.ImagesDir == "" {
		c.ImagesDir = filepath.Join(c.BundleDir, "images")
	}
	if c.Role.control() {
		if err := c.validate(); err != nil {
			return err
		}
		if err := c.validateCloud(); err != nil {
			return err
		}
		if err := c.validateSnapshots(); err != nil {
			return err
		}
	}
	if _, _, err := c.registries(); err != nil {
		return err
	}
	if _, _, err := c.fragments(); err != nil {
		return err
	}
	return c.validateLogs()
}

// socketsFit refuses a data directory whose path is too long.
func (c *Config) socketsFit() error {
	if n := len(containerd.Layout{DataDir: c.DataDir}.Socket()) + len(".ttrpc"); n > 107 {
		return fmt.Errorf("--data-dir %s: the path is %d bytes too long for the sockets below it (the kernel allows 107 bytes): choose a "+
			"shorter one", c.DataDir, n-107)
	}
	return nil
}

// absolutePaths makes the files that flags name independent of the directory in
// which berth was started.
func (c *Config) absolutePaths() (err error) {
	for flag, path := range map[string]*string{
		"agent-config": &c.AgentConfig, "image-credential-provider-config": &c.CredentialProviders,
		"image-credential-provider-bin-dir": &c.CredentialProviderDir, "registries": &c.Registries,
		"containerd-config-dir": &c.ContainerdConfigDir,
	} {
		if *path != "" {
			if *path, err = filepath.Abs(*path); err != nil {
				return fmt.Errorf("--%s: %w", flag, err)
			}
		}
	}
	return nil
}

// validate checks the cluster's ranges, its network and its controllers.
func (c *Config) validate() (err error) {
	if c.Network, err = podnetwork.ParseMode(string(c.Network)); err != nil {
		return fmt.Errorf("--network: %w", err)
	}
	pods, err := c.clusterCIDRs()
	if err != nil {
		return err
	}
	services, err := c.serviceCIDRs()
	if err != nil {
		return err
	}
	for _, s := range services {
		if i := slices.IndexFunc(pods, s.Overlaps); i >= 0 {
			return fmt.Errorf("--cluster-cidr %s and --service-cidr %s overlap: choose two ranges that share no address", pods[i], s)
		}
		if !slices.ContainsFunc(pods, func(p netip.Prefix) bool { return p.Addr().Is4() == s.Addr().Is4() }) {
			return fmt.Errorf("--service-cidr %s: pods have no addresses of that family: add a CIDR of it to --cluster-cidr", s)
		}
	}
	if err := c.validateBalancer(pods, services); err != nil {
		return err
	}
	if c.CertificateLife != 0 && c.CertificateLife < minCertificateLife {
		return fmt.Errorf("--certificate-lifetime %s: at least %s is needed to renew in time", c.CertificateLife, minCertificateLife)
	}
	_, err = controller.Choose(c.Controllers, controllers()...)
	return err
}

func (c *Config) validateCloud() error {
	switch {
	case c.CloudProvider != "" && c.CloudProvider != inventory.Name:
		return fmt.Errorf("--cloud-provider %q: not built in; allowed are %q and the empty one", c.CloudProvider, inventory.Name)
	case (c.CloudProvider == "") != (c.CloudConfig == ""):
		return errors.New("--cloud-provider and --cloud-config: give both or neither")
	}
	return nil
}

func (c *Config) validateLogs() error {
	if _, err := logLevel(c.LogLevel); err != nil {
		return err
	}
	if c.LogFormat != "" && c.LogFormat != "text" && c.LogFormat != "json" {
		return fmt.Errorf("--log-format %q: allowed are text and json", c.LogFormat)
	}
	return nil
}

// Instance is the cluster's short name outside its data directory.
func (c *Config) Instance() string { return host.Instance(c.DataDir) }

// Layout is where the bundled runtime keeps its files.
func (c *Config) Layout() containerd.Layout {
	return containerd.Layout{DataDir: c.DataDir, Instance: c.Instance()}
}

// Path joins a name to the data directory.
func (c *Config) Path(elem ...string) string {
	return filepath.Join(append([]string{c.DataDir}, elem...)...)
}

// Bridge is the pod network's bridge; interface names hold 15 bytes at most.
func (c *Config) Bridge() string {
	if name := c.Instance(); name != "berth" {
		return "brt" + strings.TrimPrefix(name, "berth-")
	}
	return "berth0"
}

// CgroupRoot is the sub-tree that holds every cgroup of this cluster.
func (c *Config) CgroupRoot() string { return "/" + c.Instance() }

func (c *Config) settingsFile() string { return c.Path("cluster.json") }

// stored reads the settings of an existing data directory; none is an empty
// value.
func (c *Config) stored() (Settings, error) {
	var s Settings
	if err := c.finishRestore(); err != nil {
		return s, err
	}
	data, err := os.ReadFile(c.settingsFile())
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("reading the cluster's settings: %w", err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("reading the cluster's settings from %s: %w", c.settingsFile(), err)
	}
	if s.Version > dataVersion {
		return s, fmt.Errorf("data directory %s was written by a newer berth (layout %d, this one knows %d): use the newer berth, or "+
			"another --data-dir", c.DataDir, s.Version, dataVersion)
	}
	return s, nil
}

// Stored reads the settings of the cluster in a directory; none is an empty
// value.
func Stored(dataDir string) (Settings, error) { return (&Config{DataDir: dataDir}).stored() }

// save writes the settings for the next start.
func (c *Config) save() error {
	c.Version = dataVersion
	data, err := json.MarshalIndent(c.Settings, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the cluster's settings: %w", err)
	}
	tmp := c.settingsFile() + ".new"
	if err := os.WriteFile(tmp, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("writing the cluster's settings: %w", err)
	}
	return os.Rename(tmp, c.settingsFile())
}

// merge takes kept values where none were given and refuses changes that the
// stored objects would contradict.
func (s *Settings) merge(kept Settings) error {
	for _, f := range []struct {
		flag       string
		given, old *string
	}{
		{"--cluster-cidr", &s.ClusterCIDR, &kept.ClusterCIDR},
		{"--service-cidr", &s.ServiceCIDR, &kept.ServiceCIDR},
		{"--cluster-domain", &s.ClusterDomain, &kept.ClusterDomain},
		{"--node-name", &s.NodeName, &kept.NodeName},
		{"server", &s.ServerURL, &kept.ServerURL},
		{"--container-runtime-endpoint", &s.RuntimeEndpoint, &kept.RuntimeEndpoint},
		{"--volumes-dir", &s.VolumesDir, &kept.VolumesDir},
	} {
		switch {
		case *f.given == "":
			*f.given = *f.old
		case *f.old != "" && *f.given != *f.old:
			return fmt.Errorf("%s %s: this cluster was made with %s and its objects depend on it; use that, or another --data-dir", f.flag,
				*f.given, *f.old)
		}
	}
	s.Name, s.Ephemeral = cmp.Or(s.Name, kept.Name), s.Ephemeral || kept.Ephemeral
	if s.Network == "" {
		s.Network = kept.Network
	}
	if s.LoadBalancer == "" {
		s.LoadBalancer = kept.LoadBalancer
	}
	if len(s.LoadBalancerPools) == 0 {
		s.LoadBalancerPools = kept.LoadBalancerPools
	}
	s.Ports.fill(kept.Ports)
	if s.AgentConfig == "" {
		s.AgentConfig = kept.AgentConfig
	}
	if s.Registries == "" {
		s.Registries = kept.Registries
	}
	if s.ContainerdConfigDir == "" {
		s.ContainerdConfigDir = kept.ContainerdConfigDir
	}
	if s.CredentialProviders == "" && s.CredentialProviderDir == "" {
		s.CredentialProviders, s.CredentialProviderDir = kept.CredentialProviders, kept.CredentialProviderDir
	}
	if s.Hardened == nil {
		s.Hardened = kept.Hardened
	}
	return nil
}

func (s *Settings) defaults(instance string) {
	if s.ClusterDomain == "" {
		s.ClusterDomain = "cluster.local"
	}
	// Clusters that share a host must not share addresses: all but the
	// default one get ranges picked by their name.
	pods, services := "10.244.0.0/16", "10.96.0.0/16"
	if instance != "berth" {
		h := fnv.New32a()
		h.Write([]byte(instance))
		n := h.Sum32() % 64
		pods, services = fmt.Sprintf("10.%d.0.0/16", 128+n), fmt.Sprintf("10.%d.0.0/16", 32+n)
	}
	if s.ClusterCIDR == "" {
		s.ClusterCIDR = pods
	}
	if s.ServiceCIDR == "" {
		s.ServiceCIDR = services
	}
}

func (p *Ports) fill(from Ports) {
	for _, f := range []struct{ to, from *int }{
		{&p.API, &from.API}, {&p.Agent, &from.Agent}, {&p.AgentHealthz, &from.AgentHealthz},
		{&p.ProxyHealthz, &from.ProxyHealthz}, {&p.ProxyMetrics, &from.ProxyMetrics}, {&p.Metrics, &from.Metrics}, {&p.DNS, &from.DNS},
		{&p.WireGuard, &from.WireGuard},
	} {
		if *f.to == 0 {
			*f.to = *f.from
		}
	}
}

// defaultRouteIP is the source address the kernel would use to leave the
// host; without a default route, the first global address.
func defaultRouteIP() (string, error) {
	routes, err := netlink.RouteListFiltered(unix.AF_INET, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err == nil || errors.Is(err, netlink.ErrDumpInterrupted) {
		for _, r := range routes {
			if r.Dst != nil && r.Dst.String() != "0.0.0.0/0" {
				continue
			}
			if r.Src != nil {
				return r.Src.String(), nil
			}
			if link, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
				if addrs, err := netlink.AddrList(link, unix.AF_INET); err == nil && len(addrs) > 0 {
					return addrs[0].IP.String(), nil
				}
			}
		}
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "", fmt.Errorf("listing this host's addresses: %w; give --node-ip", err)
	}
	for _, a := range addrs {
		if ipn, ok := a.(*net.IPNet); ok && ipn.IP.IsGlobalUnicast() && ipn.IP.To4() != nil {
			return ipn.IP.String(), nil
		}
	}
	return "", errors.New("this host has no default route and no global IPv4 address: give --node-ip")
}
