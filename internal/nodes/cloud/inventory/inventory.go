// Package inventory is a cloud provider for hosts that no cloud manages: a
// list of them, in a file or behind an HTTPS address.
package inventory

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	cloudprovider "k8s.io/cloud-provider"
	"sigs.k8s.io/yaml"
)

// Version and the two kinds of document that --cloud-config may name.
const (
	Version    = "berth.dev/v1alpha1"
	KindList   = "MachineInventory"
	KindSource = "MachineInventorySource"
)

// state is what a host is doing.
type state string

// A host is running unless said otherwise.
const (
	Running state = "running"
	Stopped state = "stopped"
)

// host is one host. Name is that of its node.
type host struct {
	Name       string            `json:"name"`
	ProviderID string            `json:"providerID"`
	State      state             `json:"state,omitempty"`
	Addresses  []address         `json:"addresses,omitempty"`
	Type       string            `json:"type,omitempty"`
	Zone       string            `json:"zone,omitempty"`
	Region     string            `json:"region,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
}

// address is one address of a host, of a type that nodes have.
type address struct {
	Type    v1.NodeAddressType `json:"type"`
	Address string             `json:"address"`
}

// document is a MachineInventory as it is written.
type document struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Empty has to be true for a list without hosts: such a list deletes
	// every node that is not ready.
	Empty bool   `json:"empty,omitempty"`
	Hosts []host `json:"machines"`
}

// list is a list of hosts that has been checked. It does not change.
type list struct {
	byName, byID map[string]*host
}

// parse reads a MachineInventory, YAML or JSON. It refuses fields it does not
// know and lists that contradict themselves; the error names every fault.
func parse(data []byte) (*list, error) {
	var d document
	if err := yaml.UnmarshalStrict(data, &d); err != nil {
		return nil, fmt.Errorf("machine inventory: %w", err)
	}
	if d.APIVersion != Version || d.Kind != KindList {
		return nil, fmt.Errorf("machine inventory: apiVersion %q, kind %q: must be %s and %s", d.APIVersion, d.Kind, Version, KindList)
	}
	if len(d.Hosts) == 0 && !d.Empty {
		return nil, errors.New("machine inventory: no machines, which would delete every node that is not ready; if that is meant, set " +
			"empty: true")
	}
	if len(d.Hosts) > 0 && d.Empty {
		return nil, errors.New("machine inventory: empty is true, but there are machines")
	}
	l := &list{byName: map[string]*host{}, byID: map[string]*host{}}
	var errs []error
	for i := range d.Hosts {
		m := &d.Hosts[i]
		where := fmt.Sprintf("machines[%d] (%q)", i, m.Name)
		for _, fault := range m.faults() {
			errs = append(errs, fmt.Errorf("%s: %s", where, fault))
		}
		if l.byName[m.Name] != nil {
			errs = append(errs, fmt.Errorf("%s: name: another machine has it", where))
		}
		if other := l.byID[m.ProviderID]; other != nil && m.ProviderID != "" {
			errs = append(errs, fmt.Errorf("%s: providerID %q: machine %q has it", where, m.ProviderID, other.Name))
		}
		l.byName[m.Name], l.byID[m.ProviderID] = m, m
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("machine inventory: %w", err)
	}
	return l, nil
}

// faults completes the host and says what is wrong with it.
func (m *host) faults() (out []string) {
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if bad := validation.IsDNS1123Subdomain(m.Name); len(bad) > 0 {
		add("name: must be that of a node: %s", bad[0])
	}
	if scheme, rest, ok := strings.Cut(m.ProviderID, "://"); !ok || scheme == "" || rest == "" {
		add("providerID %q: must be like inventory://rack-3/17", m.ProviderID)
	}
	switch m.State {
	case "":
		m.State = Running
	case Running, Stopped:
	default:
		add("state %q: allowed are %s and %s; leave machines out that are gone", m.State, Running, Stopped)
	}
	for i, a := range m.Addresses {
		switch a.Type {
		case v1.NodeInternalIP, v1.NodeExternalIP:
			if _, err := netip.ParseAddr(a.Address); err != nil {
				add("addresses[%d]: %q is no IP address", i, a.Address)
			}
		case v1.NodeHostName, v1.NodeInternalDNS, v1.NodeExternalDNS:
			if bad := validation.IsDNS1123Subdomain(a.Address); len(bad) > 0 {
				add("addresses[%d]: %q is no host name: %s", i, a.Address, bad[0])
			}
		default:
			add("addresses[%d]: type %q: allowed are InternalIP, ExternalIP, Hostname, InternalDNS and ExternalDNS", i, a.Type)
		}
	}
	for field, value := range map[string]string{"type": m.Type, "zone": m.Zone, "region": m.Region} {
		if bad := validation.IsValidLabelValue(value); len(bad) > 0 {
			add("%s %q: must be a label value: %s", field, value, bad[0])
		}
	}
	for key, value := range m.Labels {
		if bad := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(bad) > 0 {
			add("labels: %s=%q: %s", key, value, bad[0])
		}
	}
	return out
}

// Len counts the hosts.
func (l *list) Len() int { return len(l.byName) }

// find is the host of a node: the one with its provider ID if it has one,
// else the one with its name. nil for none.
func (l *list) find(n *v1.Node) *host {
	if n.Spec.ProviderID != "" {
		return l.byID[n.Spec.ProviderID]
	}
	return l.byName[n.Name]
}

func (m *host) metadata() *cloudprovider.InstanceMetadata {
	out := &cloudprovider.InstanceMetadata{ProviderID: m.ProviderID, InstanceType: m.Type, Zone: m.Zone, Region: m.Region,
		AdditionalLabels: m.Labels}
	for _, a := range m.Addresses {
		out.NodeAddresses = append(out.NodeAddresses, v1.NodeAddress{Type: a.Type, Address: a.Address})
	}
	return out
}

// source says where a list is kept when that takes more than a name.
type source struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// URL is an https:// address.
	URL string `json:"url"`
	// CAFile is a PEM bundle to trust instead of the system's.
	CAFile string `json:"caFile,omitempty"`
	// TokenFile holds a bearer token; it is read for each request.
	TokenFile string `json:"tokenFile,omitempty"`
	// Interval is how often to ask for changes, like 30s.
	Interval string `json:"interval,omitempty"`
}

// parseSource reads a MachineInventorySource; ok is false if data is another
// kind of document.
func parseSource(data []byte) (s source, ok bool, err error) {
	if !bytes.Contains(data, []byte(KindSource)) {
		return s, false, nil
	}
	if err := yaml.UnmarshalStrict(data, &s); err != nil {
		return s, true, fmt.Errorf("machine inventory source: %w", err)
	}
	if s.APIVersion != Version || s.Kind != KindSource {
		return s, true, fmt.Errorf("machine inventory source: apiVersion %q, kind %q: must be %s and %s", s.APIVersion, s.Kind, Version,
			KindSource)
	}
	if !strings.HasPrefix(s.URL, "https://") {
		return s, true, fmt.Errorf("machine inventory source: url %q: must begin with https://: anyone who can change the list can "+
			"delete nodes", s.URL)
	}
	return s, true, nil
}
