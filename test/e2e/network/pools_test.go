package network

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/test/e2e/kit"
)

const pooled = `
apiVersion: v1
kind: Service
metadata: {name: pooled}
spec: {type: LoadBalancer, loadBalancerClass: berth.dev/pool, selector: {app: spread}, ports: [{port: 22, targetPort: 8080}]}
`

// TestPoolAddressMoves: a Service has an address of a pool on a link of two
// nodes; a client there reaches it, on port 22 too, and goes on reaching it
// after the node that announces it is cut off.
func TestPoolAddressMoves(t *testing.T) {
	vip := fmt.Sprintf("172.31.%d.200", os.Getpid()%250)
	r := kit.NewHosts(t, "--load-balancer-pool", "lab="+vip)
	hosts := map[string]*kit.Host{"a": r.AddHost("a"), "b": r.AddHost("b")}
	hosts["a"].Join()
	hosts["b"].Join()
	r.Apply(kit.SpreadManifest)
	r.WaitReady("default", "app=spread", 2)
	r.Apply(pooled)
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answers := func() (bool, string) {
		resp, err := client.Get("http://" + vip + ":22/")
		if err != nil {
			return false, err.Error()
		}
		return resp.StatusCode == http.StatusOK, fmt.Sprint(resp.Status, resp.Body.Close())
	}
	r.Eventually("the Service has the address", func() (bool, string) {
		out := r.Kubectl("get", "service", "pooled", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}")
		return out == vip, out
	})
	r.Eventually("the address answers", answers)
	holder := func() string {
		return r.Kubectl("get", "lease", "-n", "berth-load-balancer", "address."+vip, "-o", "jsonpath={.spec.holderIdentity}")
	}
	first := holder()
	if hosts[first] == nil {
		t.Fatalf("the holder is %q", first)
	}
	out := r.Kubectl("get", "events", "--field-selector", "involvedObject.name=pooled", "-o", "jsonpath={.items[*].message}")
	for _, want := range []string{vip + " of pool lab", "Node " + first + " answers for " + vip} {
		if !strings.Contains(out, want) {
			t.Errorf("events %s, want %s", out, want)
		}
	}

	cable, err := netlink.LinkByName(hosts[first].Link)
	kit.Must(t, err)
	began := time.Now()
	kit.Must(t, netlink.LinkSetDown(cable))
	r.Eventually("another node has the address", func() (bool, string) { h := holder(); return h != first && h != "", h })
	t.Logf("claimed by another node within %s", time.Since(began))
	r.Eventually("the neighbours know", func() (bool, string) {
		list, err := netlink.NeighList(0, netlink.FAMILY_V4)
		for _, n := range list {
			if n.IP.String() == vip {
				return n.HardwareAddr != nil, fmt.Sprint(n)
			}
		}
		return false, fmt.Sprint(err)
	})
	kit.Must(t, netlink.LinkSetUp(cable))
	r.Eventually("the address answers again", answers)
	if again := holder(); again == first {
		t.Errorf("the node that came back took the address away from the other one")
	}
}
