// Command berth-net is the CNI plugin of berth's pod network: the standard
// bridge, host-local and portmap plugins as one step each way. A pod without
// host ports costs no portmap, and a pod that goes away waits for nothing that
// the kernel does by itself: its addresses are taken away and given back at
// once, its link ends with its network namespace, which the runtime removes
// next. (Deleting the link here would wait for the kernel's grace periods, 30
// to 45 ms on each pod's way out.)
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
	"github.com/vishvananda/netlink"
)

// config is what this plugin reads of its configuration; the rest is the
// bridge plugin's.
type config struct {
	types.NetConf
	IPMasq        bool `json:"ipMasq"`
	RuntimeConfig struct {
		PortMappings []json.RawMessage `json:"portMappings,omitempty"`
	} `json:"runtimeConfig"`
	// HostPorts is the portmap plugin's configuration.
	HostPorts map[string]any `json:"hostPorts"`
}

func main() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: del, Check: check, Status: status, GC: collect}, version.All,
		"berth-net: a bridge with host ports")
}

func read(stdin []byte) (*config, error) {
	c := &config{}
	if err := json.Unmarshal(stdin, c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "reading the network configuration", err.Error())
	}
	return c, nil
}

// portmap is the configuration that the portmap plugin gets; result is what the
// bridge plugin answered, nil on the way out.
func (c *config) portmap(result types.Result) ([]byte, error) {
	conf := map[string]any{}
	for k, v := range c.HostPorts {
		conf[k] = v
	}
	conf["cniVersion"], conf["name"], conf["type"] = c.CNIVersion, c.Name, "portmap"
	conf["runtimeConfig"] = c.RuntimeConfig
	if result != nil {
		conf["prevResult"] = result
	}
	return json.Marshal(conf)
}

func add(args *skel.CmdArgs) error {
	c, err := read(args.StdinData)
	if err != nil {
		return err
	}
	ctx := context.Background()
	result, err := invoke.DelegateAdd(ctx, "bridge", args.StdinData, nil)
	if err != nil {
		return err
	}
	if len(c.RuntimeConfig.PortMappings) > 0 {
		conf, err := c.portmap(result)
		if err != nil {
			return err
		}
		if result, err = invoke.DelegateAdd(ctx, "portmap", conf, nil); err != nil {
			return err // the runtime takes away what was made
		}
	}
	return types.PrintResult(result, c.CNIVersion)
}

func del(args *skel.CmdArgs) error {
	c, err := read(args.StdinData)
	if err != nil {
		return err
	}
	ctx := context.Background()
	if len(c.RuntimeConfig.PortMappings) > 0 {
		conf, err := c.portmap(nil)
		if err != nil {
			return err
		}
		if err := invoke.DelegateDel(ctx, "portmap", conf, nil); err != nil {
			return err
		}
	}
	if c.IPMasq || c.IPAM.Type != "host-local" {
		return invoke.DelegateDel(ctx, "bridge", args.StdinData, nil)
	}
	// Nothing answers for an address that somebody else may get next.
	if err := silence(args.Netns, args.IfName); err != nil {
		return err
	}
	return release(args)
}

// silence takes the addresses off the pod's link. A namespace or link that is
// gone already is silent.
func silence(netns, link string) error {
	if netns == "" {
		return nil
	}
	err := ns.WithNetNSPath(netns, func(ns.NetNS) error {
		l, err := netlink.LinkByName(link)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("looking for the link %s: %w", link, err)
		}
		addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			return fmt.Errorf("listing the addresses of %s: %w", link, err)
		}
		for _, a := range addrs {
			if !a.IP.IsGlobalUnicast() {
				continue
			}
			if err := netlink.AddrDel(l, &a); err != nil {
				return fmt.Errorf("removing the address %s: %w", a.IPNet, err)
			}
		}
		return nil
	})
	if errors.As(err, &ns.NSPathNotExistErr{}) {
		return nil
	}
	return err
}

// release gives the addresses of a pod's link back, where host-local keeps them.
func release(args *skel.CmdArgs) error {
	conf, _, err := allocator.LoadIPAMConfig(args.StdinData, args.Args)
	if err != nil {
		return err
	}
	store, err := disk.New(conf.Name, conf.DataDir)
	if err != nil {
		return err
	}
	defer store.Close()
	if err := store.Lock(); err != nil {
		return err
	}
	defer func() {
		if err := store.Unlock(); err != nil {
			fmt.Fprintln(os.Stderr, "berth-net:", err)
		}
	}()
	return store.ReleaseByID(args.ContainerID, args.IfName)
}

func check(args *skel.CmdArgs) error {
	return invoke.DelegateCheck(context.Background(), "bridge", args.StdinData, nil)
}

func status(args *skel.CmdArgs) error {
	return invoke.DelegateStatus(context.Background(), "bridge", args.StdinData, nil)
}

func collect(args *skel.CmdArgs) error {
	return invoke.DelegateGC(context.Background(), "bridge", args.StdinData, nil)
}
