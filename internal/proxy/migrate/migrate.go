// Package migrate removes the rules that a kube-proxy leaves on a node when
// it is stopped, and nothing else.
package migrate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/internal/proxy"
)

// nftTable is the name of kube-proxy's tables in nftables mode.
const nftTable = "kube-proxy"

// ipvsLink is the interface that holds the addresses of Services in IPVS mode.
const ipvsLink = "kube-ipvs0"

// RemoveKubeProxy removes what kube-proxy left in any mode. Programs that a
// mode needs and that are missing are no error: that mode cannot have run
// here without them, unless it ran in a container of its own.
func RemoveKubeProxy(ctx context.Context, log *slog.Logger) error {
	errs := []error{proxy.Cleanup(nftTable), removeIPVS(ctx, log)}
	for _, prefix := range []string{"iptables", "ip6tables"} {
		save, err := exec.LookPath(prefix + "-save")
		if err != nil {
			log.Info("iptables rules are not looked at", "missing", prefix+"-save")
			continue
		}
		out, err := exec.CommandContext(ctx, save).Output()
		if err != nil {
			errs = append(errs, fmt.Errorf("running %s: %w", save, err))
			continue
		}
		script := iptablesScript(string(out))
		if script == "" {
			continue
		}
		cmd := exec.CommandContext(ctx, prefix+"-restore", "--noflush")
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("running %s-restore: %w: %s", prefix, err, bytes.TrimSpace(out)))
			continue
		}
		log.Info("removed kube-proxy's rules", "from", prefix)
	}
	return errors.Join(errs...)
}

// kubeletChains are made by the kubelet and stay.
var kubeletChains = []string{"KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT"}

// owned says whether an iptables chain is one of kube-proxy's.
func owned(chain string) bool {
	return strings.HasPrefix(chain, "KUBE-") && !slices.Contains(kubeletChains, chain)
}

// iptablesScript turns the output of iptables-save into the input of
// iptables-restore that removes kube-proxy's chains and the rules that lead
// to them. It is empty when there is nothing to remove.
func iptablesScript(saved string) string {
	var out strings.Builder
	var head string
	var body, chains []string
	flush := func() {
		if len(chains) > 0 {
			fmt.Fprintln(&out, head)
			for _, l := range body {
				fmt.Fprintln(&out, l)
			}
			for _, verb := range []string{"-F", "-X"} {
				for _, c := range chains {
					fmt.Fprintln(&out, verb, c)
				}
			}
			fmt.Fprintln(&out, "COMMIT")
		}
		body, chains = nil, nil
	}
	for _, line := range strings.Split(saved, "\n") {
		words := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "*"):
			head = line
		case strings.HasPrefix(line, ":") && owned(strings.TrimPrefix(words[0], ":")):
			chains = append(chains, strings.TrimPrefix(words[0], ":"))
		case len(words) > 2 && words[0] == "-A" && !owned(words[1]) && owned(target(words)):
			body = append(body, "-D"+strings.TrimPrefix(line, "-A"))
		case line == "COMMIT":
			flush()
		}
	}
	return out.String()
}

// target is the chain a rule leads to.
func target(words []string) string {
	for i, w := range words[:len(words)-1] {
		if w == "-j" || w == "-g" {
			return words[i+1]
		}
	}
	return ""
}

// removeIPVS removes kube-proxy's interface and the virtual servers on its
// addresses. Without the interface IPVS mode did not run.
func removeIPVS(ctx context.Context, log *slog.Logger) error {
	link, err := netlink.LinkByName(ipvsLink)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking for %s: %w", ipvsLink, err)
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("listing the addresses of %s: %w", ipvsLink, err)
	}
	mine := map[string]bool{}
	for _, a := range addrs {
		mine[a.IP.String()] = true
	}
	var errs []error
	if save, err := exec.LookPath("ipvsadm-save"); err == nil {
		out, err := exec.CommandContext(ctx, save, "-n").Output()
		if err != nil {
			return fmt.Errorf("running %s: %w", save, err)
		}
		for _, args := range ipvsDeletions(string(out), mine) {
			if out, err := exec.CommandContext(ctx, "ipvsadm", args...).CombinedOutput(); err != nil {
				errs = append(errs, fmt.Errorf("running ipvsadm %v: %w: %s", args, err, bytes.TrimSpace(out)))
			}
		}
	} else {
		log.Warn("IPVS virtual servers stay: ipvsadm is not installed")
	}
	if err := netlink.LinkDel(link); err != nil {
		errs = append(errs, fmt.Errorf("removing %s: %w", ipvsLink, err))
	} else {
		log.Info("removed kube-proxy's interface", "name", ipvsLink)
	}
	return errors.Join(errs...)
}

// ipvsDeletions picks the virtual servers on kube-proxy's addresses from the
// output of ipvsadm-save -n.
func ipvsDeletions(saved string, mine map[string]bool) [][]string {
	var out [][]string
	for _, line := range strings.Split(saved, "\n") {
		w := strings.Fields(line)
		if len(w) < 3 || w[0] != "-A" {
			continue
		}
		i := strings.LastIndex(w[2], ":")
		if i > 0 && mine[strings.Trim(w[2][:i], "[]")] {
			out = append(out, []string{"-D", w[1], w[2]})
		}
	}
	return out
}
