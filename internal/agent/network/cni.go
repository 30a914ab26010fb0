package network

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
)

// CNIOptions shape the pod network of the node.
type CNIOptions struct {
	// Name of the network; default "berth". host-local keeps its leases under it.
	Name string
	// File is the name of the written file; default "10-berth.conflist".
	File string
	// Bridge is the name of the bridge; default "berth0". Two clusters on one
	// host need two names.
	Bridge string
	// MTU of the pods' links in bytes; 0 lets the plugin take the default route's.
	MTU int
	// DataDir is where host-local records addresses; "" for its default.
	DataDir string
	// Masquerade hides pod addresses behind the node's when they leave the
	// pod network.
	Masquerade bool
	// MasqueradeBackend is "nftables" (default) or "iptables".
	MasqueradeBackend string
	// NoHairpin stops a pod from reaching itself through a service.
	NoHairpin bool
	// OneStep names the plugin of berth's own runtime bundle, which does what
	// the two standard ones do and takes a pod's network away sooner.
	OneStep bool
}

func (o CNIOptions) withDefaults() CNIOptions {
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	def(&o.Name, "berth")
	def(&o.File, "10-berth.conflist")
	def(&o.Bridge, "berth0")
	def(&o.MasqueradeBackend, "nftables")
	return o
}

type cniList struct {
	Version string `json:"cniVersion"`
	Name    string `json:"name"`
	Plugins []any  `json:"plugins"`
}

type cniBridge struct {
	Type          string `json:"type"`
	Bridge        string `json:"bridge"`
	IsGateway     bool   `json:"isGateway"`
	IPMasq        bool   `json:"ipMasq"`
	IPMasqBackend string `json:"ipMasqBackend,omitempty"`
	HairpinMode   bool   `json:"hairpinMode"`
	// A changed pod CIDR must replace the bridge's old address.
	ForceAddress bool    `json:"forceAddress"`
	MTU          int     `json:"mtu,omitempty"`
	IPAM         cniIPAM `json:"ipam"`
	// Of berth-net alone.
	Capabilities map[string]bool `json:"capabilities,omitempty"`
	HostPorts    *cniHostPorts   `json:"hostPorts,omitempty"`
}

// cniHostPorts is how berth-net has host ports made.
type cniHostPorts struct {
	SNAT    bool   `json:"snat"`
	Backend string `json:"backend"`
}

type cniIPAM struct {
	Type    string       `json:"type"`
	Ranges  [][]cniRange `json:"ranges"`
	Routes  []cniRoute   `json:"routes"`
	DataDir string       `json:"dataDir,omitempty"`
}

type cniRange struct {
	Subnet string `json:"subnet"`
}

type cniRoute struct {
	Dst string `json:"dst"`
}

type cniPortmap struct {
	Type         string          `json:"type"`
	Capabilities map[string]bool `json:"capabilities"`
	SNAT         bool            `json:"snat"`
	Backend      string          `json:"backend,omitempty"`
}

// cniConfig is the network configuration list for a node's pod CIDRs: a
// bridge with addresses from host-local, and host ports.
func cniConfig(podCIDRs []string, o CNIOptions) ([]byte, error) {
	o = o.withDefaults()
	if len(o.Bridge) > 15 {
		return nil, fmt.Errorf("bridge name %q has %d characters: the kernel allows 15", o.Bridge, len(o.Bridge))
	}
	if o.MasqueradeBackend != "nftables" && o.MasqueradeBackend != "iptables" {
		return nil, fmt.Errorf("masquerade backend %q: allowed are nftables and iptables", o.MasqueradeBackend)
	}
	if len(podCIDRs) == 0 {
		return nil, errors.New("writing CNI configuration: the node has no pod CIDR")
	}
	ipam := cniIPAM{Type: "host-local", DataDir: o.DataDir}
	for _, cidr := range podCIDRs {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return nil, fmt.Errorf("pod CIDR %q: %w", cidr, err)
		}
		ipam.Ranges = append(ipam.Ranges, []cniRange{{Subnet: p.Masked().String()}})
		dst := "0.0.0.0/0"
		if p.Addr().Is6() {
			dst = "::/0"
		}
		ipam.Routes = append(ipam.Routes, cniRoute{Dst: dst})
	}
	bridge := cniBridge{
		Type: "bridge", Bridge: o.Bridge, IsGateway: true, ForceAddress: true,
		IPMasq: o.Masquerade, HairpinMode: !o.NoHairpin, MTU: o.MTU, IPAM: ipam,
	}
	if o.Masquerade {
		bridge.IPMasqBackend = o.MasqueradeBackend
	}
	mapped := map[string]bool{"portMappings": true}
	plugins := []any{bridge, cniPortmap{Type: "portmap", Capabilities: mapped, SNAT: true, Backend: o.MasqueradeBackend}}
	if o.OneStep {
		bridge.Type, bridge.Capabilities, bridge.HostPorts = "berth-net", mapped, &cniHostPorts{SNAT: true, Backend: o.MasqueradeBackend}
		plugins = []any{bridge}
	}
	b, err := json.MarshalIndent(cniList{Version: "1.0.0", Name: o.Name, Plugins: plugins}, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(b, '\n'), nil
}

// RemoveCNI removes what WriteCNI wrote, if it did.
func RemoveCNI(dir string, o CNIOptions) error {
	if err := os.Remove(filepath.Join(dir, o.withDefaults().File)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing CNI configuration: %w", err)
	}
	return nil
}

// WriteCNI writes the node's network configuration into dir. A reader sees the
// old file or the new one, never half of one; an unchanged file is not
// touched, so that runtimes watching dir are not woken.
func WriteCNI(dir string, podCIDRs []string, o CNIOptions) error {
	content, err := cniConfig(podCIDRs, o)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making CNI directory: %w", err)
	}
	file := filepath.Join(dir, o.withDefaults().File)
	old, err := os.ReadFile(file)
	if err == nil && bytes.Equal(old, content) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading CNI configuration: %w", err)
	}
	// CNI readers take files by suffix, so the temporary one must not have one.
	tmp := filepath.Join(dir, "."+filepath.Base(file)+".tmp")
	if err := os.WriteFile(tmp, content, 0o644); err != nil {
		return fmt.Errorf("writing CNI configuration: %w", err)
	}
	if err := os.Rename(tmp, file); err != nil {
		return fmt.Errorf("placing CNI configuration: %w", err)
	}
	return nil
}
