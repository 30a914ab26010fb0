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

	"github.com/berth-dev/berth/internal/proxy"
)

// nftTable is the name of kube-proxy's tables in nftables mode.
const nftTable = "kube-proxy"

// RemoveKubeProxy removes what kube-proxy left in any mode. Programs that a
// mode needs and that are missing are no error: that mode cannot have run
// here without them, unless it ran in a container of its own.
func RemoveKubeProxy(ctx context.Context, log *slog.Logger) error {
	errs := []error{proxy.Cleanup(nftTable)}
	for _, prefix := range iptablesVariants(exec.LookPath, log) {
		errs = append(errs, removeIPTables(ctx, prefix, log))
	}
	// The rules above refer to IP sets, so these go last.
	return errors.Join(append(errs, removeIPVS(log))...)
}

// iptablesVariants are the iptables programs to be asked: rules of the legacy
// and of the nftables variant do not see each other, and no one knows which
// one kube-proxy's image had. Plain names are one of the two, or all there is.
func iptablesVariants(look func(string) (string, error), log *slog.Logger) (out []string) {
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, names := range [][]string{{family + "-nft", family + "-legacy"}, {family}} {
			var found []string
			for _, n := range names {
				if _, err := look(n + "-save"); err == nil {
					found = append(found, n)
				}
			}
			if out = append(out, found...); len(found) > 0 {
				break
			}
		}
	}
	if len(out) == 0 {
		log.Info("iptables rules are not looked at: no iptables-save is installed here")
	}
	return out
}

// removeIPTables removes kube-proxy's rules of one variant and family.
func removeIPTables(ctx context.Context, prefix string, log *slog.Logger) error {
	var said bytes.Buffer
	save := exec.CommandContext(ctx, prefix+"-save")
	save.Stderr = &said
	out, err := save.Output()
	if err != nil {
		return fmt.Errorf("running %s-save: %w: %s", prefix, err, bytes.TrimSpace(said.Bytes()))
	}
	script := iptablesScript(string(out))
	if script == "" {
		return nil
	}
	cmd := exec.CommandContext(ctx, prefix+"-restore", "--noflush")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("running %s-restore: %w: %s", prefix, err, bytes.TrimSpace(out))
	}
	log.Info("removed kube-proxy's rules", "from", prefix)
	return nil
}

// Others name chains KUBE-... too: the kubelet (KUBE-FIREWALL, canaries and
// hints) and kube-router (KUBE-ROUTER-..., KUBE-POD-FW-..., KUBE-NWPLCY-...).
// So kube-proxy's are listed: chains by name, and those made for each Service.
var (
	proxyChains = []string{"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-MARK-MASQ",
		"KUBE-MARK-DROP", "KUBE-FORWARD",
		"KUBE-PROXY-FIREWALL", "KUBE-PROXY-CANARY",
		// IPVS mode:
		"KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER"}
	serviceChains = []string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-SEP-", "KUBE-FW-", "KUBE-XLB-"}
)

// owned says whether a chain of an iptables table is one of kube-proxy's.
func owned(table, chain string) bool {
	// In the filter table this is the kubelet's, in nat it is of IPVS mode.
	return chain == "KUBE-FIREWALL" && table == "nat" || slices.Contains(proxyChains, chain) ||
		slices.ContainsFunc(serviceChains, func(p string) bool { return strings.HasPrefix(chain, p) })
}

// iptablesScript turns the output of iptables-save into the input of
// iptables-restore that removes kube-proxy's chains and the rules that lead
// to them. It is empty when there is nothing to remove.
func iptablesScript(saved string) string {
	var out strings.Builder
	var head, table string
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
			head, table = line, strings.TrimSpace(line[1:])
		case strings.HasPrefix(line, ":") && owned(table, strings.TrimPrefix(words[0], ":")):
			chains = append(chains, strings.TrimPrefix(words[0], ":"))
		case len(words) > 2 && words[0] == "-A" && !owned(table, words[1]) && owned(table, target(words)):
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
