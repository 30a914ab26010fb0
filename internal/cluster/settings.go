package cluster

import podnetwork "github.com/berth-dev/berth/internal/network"

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
	// LoadBalancerPools are pools of addresses for Services, as
	// --load-balancer-pool has them; servers of one cluster need the same.
	LoadBalancerPools []string `json:"loadBalancerPools,omitempty"`
	// VolumesDir holds this node's local volumes; "none" is a node without.
	VolumesDir string `json:"volumesDir,omitempty"`
	// AgentConfig is a file with a KubeletConfiguration, to lay below what the
	// cluster sets itself.
	AgentConfig string `json:"agentConfig,omitempty"`
	// Hardened takes from containers the capabilities that the runtime gives by
	// default and few programs need, unless they ask for them. Nil: as before.
	Hardened *bool `json:"hardened,omitempty"`
	// ManifestsDir holds files to apply; empty for manifests in the data
	// directory, "none" for none.
	ManifestsDir string `json:"manifestsDir,omitempty"`
	RuntimeSettings
}

// RuntimeSettings are those of the container runtime of this node, and of where
// it gets images.
type RuntimeSettings struct {
	// RuntimeEndpoint is a CRI socket of a runtime that is already there;
	// empty: the bundled containerd. It is kept because `berth down` must find
	// the containers again.
	RuntimeEndpoint string `json:"runtimeEndpoint,omitempty"`
	// CredentialProviders and CredentialProviderDir are the configuration of
	// image credential plugins and the directory they lie in; both or none.
	CredentialProviders   string `json:"credentialProviders,omitempty"`
	CredentialProviderDir string `json:"credentialProviderDir,omitempty"`
	// Registries is a registries.yaml; empty for the first of those in the data
	// directory and in /etc/berth.
	Registries string `json:"registries,omitempty"`
	// ContainerdConfigDir holds configuration files that the bundled containerd
	// merges into its own; empty for containerd.d in the data directory.
	ContainerdConfigDir string `json:"containerdConfigDir,omitempty"`
}
