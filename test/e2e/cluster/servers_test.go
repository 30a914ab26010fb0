package cluster

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestTwoServers runs two control planes on one external etcd: the one that
// leads is killed, and the other goes on with what it began, for kubectl and
// for a node that knows both.
func TestTwoServers(t *testing.T) {
	store := externalEtcd(t)
	server := func() *kit.Cluster {
		c := kit.NewCluster(t, "--etcd-servers", store, "--cluster-cidr", "10.211.0.0/16", "--service-cidr", "10.212.0.0/16")
		c.Command = "server"
		c.Flags = append(c.Flags, "--node-name", "server-"+filepath.Base(c.Dir))
		return c
	}
	a := server()
	a.Up()
	b := server() // after a is up: it looks for free ports
	// Servers of one cluster share its keys.
	if out, err := exec.Command("cp", "-r", filepath.Join(a.Dir, "pki"), filepath.Join(b.Dir, "pki")).CombinedOutput(); err != nil {
		t.Fatalf("copying the keys: %v\n%s", err, out)
	}
	b.Up()
	holder := func() string {
		lease, err := b.Client.CoordinationV1().Leases(metav1.NamespaceSystem).Get(t.Context(), "berth-server", metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil {
			return ""
		}
		return *lease.Spec.HolderIdentity
	}
	b.Eventually("a server leads", func() (bool, string) { return holder() != "", "" })
	if !strings.HasPrefix(holder(), "server-"+filepath.Base(a.Dir)) {
		t.Fatalf("%s leads, want the first server", holder())
	}
	a.Kubectl("create", "deployment", "two", "--image=berth.dev/toolbox:1", "--replicas=2")
	replicas := func(c *kit.Cluster, want int) {
		t.Helper()
		c.Eventually(strconv.Itoa(want)+" pods of the deployment", func() (bool, string) {
			n := len(c.Pods("default", "app=two"))
			return n == want, strconv.Itoa(n)
		})
	}
	replicas(b, 2)

	kit.Must(t, syscall.Kill(a.PID(), syscall.SIGKILL))
	a.Disconnect()
	b.Kubectl("scale", "deployment", "two", "--replicas=5")
	replicas(b, 5)
	if !strings.HasPrefix(holder(), "server-"+filepath.Base(b.Dir)) {
		t.Errorf("%s leads, want the second server", holder())
	}

	// The first comes back and follows.
	a.Up()
	a.Kubectl("scale", "deployment", "two", "--replicas=1")
	replicas(a, 1)
	if !strings.HasPrefix(holder(), "server-"+filepath.Base(b.Dir)) {
		t.Errorf("%s leads, want the second server still", holder())
	}
}

// externalEtcd runs an etcd that no berth started; it returns its address.
func externalEtcd(t *testing.T) string {
	t.Helper()
	if os.Getenv("BERTH_BIN") == "" {
		t.Skip("BERTH_BIN is not set: it names the directory with the built binaries (make e2e sets it)")
	}
	cfg := embed.NewConfig()
	cfg.Dir = t.TempDir()
	cfg.LogLevel = "error"
	first := kit.FreePorts(t, 2)
	client := url.URL{Scheme: "http", Host: "127.0.0.1:" + strconv.Itoa(first)}
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:" + strconv.Itoa(first+1)}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	etcd, err := embed.StartEtcd(cfg)
	kit.Must(t, err)
	t.Cleanup(etcd.Close)
	<-etcd.Server.ReadyNotify()
	return client.String()
}
