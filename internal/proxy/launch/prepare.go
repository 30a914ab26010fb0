package launch

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/proxy/config"
)

// conntrackCap is the largest limit of tracked connections that is set by
// the number of cores.
const conntrackCap = 1 << 20

// prepare sets what the host needs, below root. A host that does not allow
// it, such as a container with a read-only /proc, still gets its proxy.
func prepare(c *config.KubeProxyConfiguration, log *slog.Logger, root string) {
	p := preparer{log, root}
	p.write("/proc/self/oom_score_adj", int(*c.OOMScoreAdj))
	const netfilter = "/proc/sys/net/netfilter/nf_conntrack_"
	t := c.Conntrack
	if limit := conntrackMax(int(*t.MaxPerCore), int(*t.Min), runtime.NumCPU()); limit > 0 {
		if have, ok := p.read(netfilter + "max"); ok && have < limit {
			p.write(netfilter+"max", limit)
			if buckets, ok := p.read("/sys/module/nf_conntrack/parameters/hashsize"); ok && buckets < limit/4 {
				p.write("/sys/module/nf_conntrack/parameters/hashsize", limit/4)
			}
		}
	}
	for name, d := range map[string]time.Duration{"tcp_timeout_established": t.TCPEstablishedTimeout.Duration,
		"tcp_timeout_close_wait": t.TCPCloseWaitTimeout.Duration,
		"udp_timeout":            t.UDPTimeout.Duration, "udp_timeout_stream": t.UDPStreamTimeout.Duration} {
		if d > 0 {
			p.write(netfilter+name, int(d.Seconds()))
		}
	}
	if t.TCPBeLiberal {
		p.write(netfilter+"tcp_be_liberal", 1)
	}
}

// conntrackMax is the limit of tracked connections; 0 is to leave it alone.
func conntrackMax(perCore, least, cores int) int {
	if perCore == 0 {
		return 0
	}
	return min(max(perCore*cores, least), conntrackCap)
}

type preparer struct {
	log  *slog.Logger
	root string
}

func (p preparer) read(path string) (int, bool) {
	data, err := os.ReadFile(filepath.Join(p.root, path))
	if err != nil {
		p.log.Warn("reading a setting of the kernel", "file", path, "err", err)
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	return n, err == nil
}

func (p preparer) write(path string, n int) {
	want, file := fmt.Sprint(n), filepath.Join(p.root, path)
	if have, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(have)) == want {
		return
	}
	if err := os.WriteFile(file, []byte(want+"\n"), 0o644); err != nil {
		p.log.Warn("the kernel keeps its setting", "file", path, "wanted", n, "err", err)
	}
}
