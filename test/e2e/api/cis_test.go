package api

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// check is one check of the CIS Kubernetes benchmark 1.10, in our own words.
// One without a probe has a reason: why it cannot apply, or what holds instead.
type check struct {
	id, title string
	probe     func(*cis) error
	reason    string
}

// cis is a cluster that was started with no flags of its own, as root would.
type cis struct {
	*kit.Cluster
	nodeIP  string
	kubelet kubeletv1beta1.KubeletConfiguration
	help    string // of `berth up`
}

// TestCIS runs all checks of sections 1 to 4.
func TestCIS(t *testing.T) {
	c := &cis{Cluster: kit.NewCluster(t)}
	c.Up()
	c.nodeIP = c.Node().Status.Addresses[0].Address
	var shown struct {
		Kubelet *kubeletv1beta1.KubeletConfiguration `json:"kubeletconfig"`
	}
	shown.Kubelet = &c.kubelet
	kit.Must(t, json.Unmarshal([]byte(c.NodeProxy("configz")), &shown))
	c.help = c.Berth("up", "--help")
	c.Kubectl("create", "secret", "generic", "crown", "--from-literal=jewel=cis-clear-text-marker")
	passed, reasons := 0, 0
	for _, k := range checks {
		if k.probe == nil {
			if k.reason == "" {
				t.Errorf("%s %s: neither a probe nor a reason", k.id, k.title)
			}
			t.Logf("%-7s reason  %s: %s", k.id, k.title, k.reason)
			reasons++
			continue
		}
		if err := k.probe(c); err != nil {
			t.Errorf("%-7s FAIL    %s: %v", k.id, k.title, err)
			continue
		}
		t.Logf("%-7s pass    %s", k.id, k.title)
		passed++
	}
	t.Logf("%d checks: %d pass, %d have a reason", len(checks), passed, reasons)
}

const (
	noManifests = "there is no such file: the control plane is one process, not static pods"
	noEtcdTLS   = "etcd has no network port: two unix sockets in a directory of mode 0700 (2.1 checks it)"
)

var checks = []check{
	{id: "1.1.1", title: "mode of the API server's pod file", reason: noManifests},
	{id: "1.1.2", title: "owner of the API server's pod file", reason: noManifests},
	{id: "1.1.3", title: "mode of the controller manager's pod file", reason: noManifests},
	{id: "1.1.4", title: "owner of the controller manager's pod file", reason: noManifests},
	{id: "1.1.5", title: "mode of the scheduler's pod file", reason: noManifests},
	{id: "1.1.6", title: "owner of the scheduler's pod file", reason: noManifests},
	{id: "1.1.7", title: "mode of etcd's pod file", reason: noManifests},
	{id: "1.1.8", title: "owner of etcd's pod file", reason: noManifests},
	{id: "1.1.9", title: "mode of CNI configuration", probe: below("agent/cni", 0o644)},
	{id: "1.1.10", title: "owner of CNI configuration", probe: below("agent/cni", 0o644)},
	{id: "1.1.11", title: "mode of etcd's data", probe: mode("etcd", 0o700)},
	{id: "1.1.12", title: "owner of etcd's data",
		reason: "root, as the process: a user etcd would need a process of its own; 1.1.11 keeps all others out"},
	{id: "1.1.13", title: "mode of administrators' kubeconfigs", probe: all(mode("admin.kubeconfig", 0o600),
		mode("super-admin.kubeconfig", 0o600))},
	{id: "1.1.14", title: "owner of administrators' kubeconfigs", probe: all(mode("admin.kubeconfig", 0o600),
		mode("super-admin.kubeconfig", 0o600))},
	{id: "1.1.15", title: "mode of the scheduler's kubeconfig", reason: "there is none: it runs in the server's process"},
	{id: "1.1.16", title: "owner of the scheduler's kubeconfig", reason: "there is none: it runs in the server's process"},
	{id: "1.1.17", title: "mode of the controller manager's kubeconfig", reason: "there is none: it runs in the server's process"},
	{id: "1.1.18", title: "owner of the controller manager's kubeconfig", reason: "there is none: it runs in the server's process"},
	{id: "1.1.19", title: "owner of the PKI directory", probe: mode("pki", 0o700)},
	{id: "1.1.20", title: "mode of certificates", probe: all(mode("pki", 0o700), below("pki", 0o644))},
	{id: "1.1.21", title: "mode of keys", probe: keys},

	{id: "1.2.1", title: "no anonymous requests", probe: anonymous},
	{id: "1.2.2", title: "no token file", probe: noFlag("token-auth-file")},
	{id: "1.2.3", title: "DenyServiceExternalIPs", probe: refuses(`
apiVersion: v1
kind: Service
metadata: {name: cis}
spec: {externalIPs: [192.0.2.1], ports: [{port: 80}]}`, "external IP")},
	{id: "1.2.4", title: "client certificate towards agents", probe: func(c *cis) error {
		return status("https://"+c.at(1)+"/pods", http.StatusUnauthorized)
	}},
	{id: "1.2.5", title: "agents' certificates are verified",
		reason: "always: a CA of their own, and the name of the node (api/nodes TestAgentsCertificateIsTheNodes)"},
	{id: "1.2.6", title: "not AlwaysAllow", probe: cannot("list", "secrets")},
	{id: "1.2.7", title: "Node authorizer", probe: cannotNode},
	{id: "1.2.8", title: "RBAC", probe: cannot("create", "clusterrolebindings")},
	{id: "1.2.9", title: "EventRateLimit",
		reason: "wants limits that only the user knows, as upstream; --enable-admission-plugins=EventRateLimit; " +
			"priority and fairness bounds every client by default"},
	{id: "1.2.10", title: "no AlwaysAdmit", probe: noText("AlwaysAdmit")},
	{id: "1.2.11", title: "AlwaysPullImages",
		reason: "the agent lets a pod use a pulled image only with the credentials it was pulled with (KEP-2535), so a registry " +
			"that is down stops no pod; --enable-admission-plugins=AlwaysPullImages"},
	{id: "1.2.12", title: "ServiceAccount", probe: hasAccount},
	{id: "1.2.13", title: "NamespaceLifecycle",
		probe: refuses("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, namespace: never-made}", "not found")},
	{id: "1.2.14", title: "NodeRestriction", probe: cannotNode},
	{id: "1.2.15", title: "no profiling", probe: func(c *cis) error {
		if out, err := c.TryKubectl("", "get", "--raw", "/debug/pprof/"); err == nil {
			return fmt.Errorf("/debug/pprof/ answers %.40q", out)
		}
		return nil
	}},
	{id: "1.2.16", title: "audit log", probe: audited},
	{id: "1.2.17", title: "audit log: age", probe: defaultAtLeast("audit-log-maxage", 30)},
	{id: "1.2.18", title: "audit log: backups", probe: defaultAtLeast("audit-log-maxbackup", 10)},
	{id: "1.2.19", title: "audit log: size", probe: defaultAtLeast("audit-log-maxsize", 100)},
	{id: "1.2.20", title: "request timeout", reason: "60 s, the library's default; no flag changes it"},
	{id: "1.2.21", title: "service accounts are looked up", probe: lookup},
	{id: "1.2.22", title: "key of service accounts", probe: keys},
	{id: "1.2.23", title: "etcd client certificate", reason: noEtcdTLS},
	{id: "1.2.24", title: "TLS certificate", probe: func(c *cis) error {
		return serves(c.at(0), &tls.Config{InsecureSkipVerify: true},
			true)
	}}, //nolint:gosec // that it serves TLS
	{id: "1.2.25", title: "client CA", probe: anonymous},
	{id: "1.2.26", title: "etcd CA", reason: noEtcdTLS},
	{id: "1.2.27", title: "encryption at rest", probe: encrypted},
	{id: "1.2.28", title: "provider of encryption", probe: encrypted},
	{id: "1.2.29", title: "strong ciphers of the API server", probe: ciphers(0)},

	{id: "1.3.1", title: "bound of terminated pods", reason: "12500, upstream's default (nodes/podgc); `berth controllers` has the flag"},
	{id: "1.3.2", title: "no profiling of controllers", probe: func(c *cis) error {
		return status("https://"+c.at(5)+"/debug/pprof/",
			http.StatusNotFound)
	}},
	{id: "1.3.3", title: "each controller has an identity of its own", probe: identities},
	{id: "1.3.4", title: "private key of service accounts", probe: keys},
	{id: "1.3.5", title: "root CA for pods", probe: func(c *cis) error {
		if out := c.Kubectl("get", "configmap", "kube-root-ca.crt", "-o", "jsonpath={.data}"); !strings.Contains(out, "BEGIN CERTIFICATE") {
			return fmt.Errorf("kube-root-ca.crt holds %.60q", out)
		}
		return nil
	}},
	{id: "1.3.6", title: "agents' serving certificates rotate",
		reason: "the cluster renews them while it runs (cluster TestCertificatesAreRenewedWhileRunning)"},
	{id: "1.3.7", title: "controllers listen on loopback", probe: loopbackOnly(5)},
	{id: "1.4.1", title: "no profiling of the scheduler", probe: func(c *cis) error {
		return status("https://"+c.at(5)+"/debug/pprof/",
			http.StatusNotFound)
	}},
	{id: "1.4.2", title: "the scheduler listens on loopback", probe: loopbackOnly(5)},

	{id: "2.1", title: "etcd's server certificate", probe: func(c *cis) error {
		return errors.Join(mode("etcd", 0o700)(c), socket(filepath.Join(c.Dir, "etcd", "client.sock")))
	}},
	{id: "2.2", title: "etcd asks for client certificates", reason: noEtcdTLS},
	{id: "2.3", title: "etcd: no certificates of its own making", reason: noEtcdTLS},
	{id: "2.4", title: "etcd's peer certificate", reason: noEtcdTLS + "; and it has no peers"},
	{id: "2.5", title: "etcd asks peers for certificates", reason: noEtcdTLS + "; and it has no peers"},
	{id: "2.6", title: "etcd peers: no certificates of its own making", reason: noEtcdTLS + "; and it has no peers"},
	{id: "2.7", title: "a CA of etcd's own", reason: noEtcdTLS},

	{id: "3.1.1", title: "people have no client certificates",
		reason: "--oidc-* and --authentication-config are there; the everyday administrator's certificate is revoked by " +
			"deleting one binding (cluster TestAdministratorsCanBeRevoked)"},
	{id: "3.1.2", title: "people have no service account tokens", reason: "the user's to decide; berth makes none"},
	{id: "3.1.3", title: "people have no bootstrap tokens", probe: cannotAs("system:bootstrap:abcdef", "system:bootstrappers", "list",
		"secrets")},
	{id: "3.2.1", title: "a minimal audit policy", probe: audited},
	{id: "3.2.2", title: "the audit policy covers key concerns", probe: audited},

	{id: "4.1.1", title: "mode of the service file", reason: "the user installs it; examples/systemd/berth.service holds no secret"},
	{id: "4.1.2", title: "owner of the service file", reason: "the user installs it"},
	{id: "4.1.3", title: "mode of the proxy's kubeconfig", probe: below("pki", 0o644)},
	{id: "4.1.4", title: "owner of the proxy's kubeconfig", probe: mode("pki", 0o700)},
	{id: "4.1.5", title: "mode of the agent's kubeconfig", probe: kubeconfigs},
	{id: "4.1.6", title: "owner of the agent's kubeconfig", probe: kubeconfigs},
	{id: "4.1.7", title: "mode of the client CA", probe: all(mode("pki", 0o700), mode("pki/ca.crt", 0o644))},
	{id: "4.1.8", title: "owner of the client CA", probe: mode("pki/ca.crt", 0o644)},
	{id: "4.1.9", title: "mode of the agent's configuration", reason: "the file of --agent-config is the user's, and holds no secret"},
	{id: "4.1.10", title: "owner of the agent's configuration", reason: "the file of --agent-config is the user's"},
	{id: "4.2.1", title: "agent: no anonymous requests", probe: func(c *cis) error {
		return status("https://"+c.at(1)+"/pods",
			http.StatusUnauthorized)
	}},
	{id: "4.2.2", title: "agent: not AlwaysAllow",
		probe: field(func(k *kubeletv1beta1.KubeletConfiguration) bool { return k.Authorization.Mode == "Webhook" })},
	{id: "4.2.3", title: "agent: client CA",
		probe: field(func(k *kubeletv1beta1.KubeletConfiguration) bool { return k.Authentication.X509.ClientCAFile != "" })},
	{id: "4.2.4", title: "agent: no read-only port",
		probe: field(func(k *kubeletv1beta1.KubeletConfiguration) bool { return k.ReadOnlyPort == 0 })},
	{id: "4.2.5", title: "agent: streams time out", probe: field(func(k *kubeletv1beta1.KubeletConfiguration) bool {
		return k.StreamingConnectionIdleTimeout.Duration != 0
	})},
	{id: "4.2.6", title: "agent: keeps its chains", probe: field(func(k *kubeletv1beta1.KubeletConfiguration) bool {
		return k.MakeIPTablesUtilChains == nil || *k.MakeIPTablesUtilChains
	})},
	{id: "4.2.7", title: "agent: no name of its own",
		reason: "the name is the host's unless --node-name says otherwise; certificates name the same node"},
	{id: "4.2.8", title: "agent: rate of events", probe: field(func(k *kubeletv1beta1.KubeletConfiguration) bool {
		return k.EventRecordQPS != nil && *k.EventRecordQPS > 0
	})},
	{id: "4.2.9", title: "agent: TLS certificate", probe: func(c *cis) error {
		return serves(c.at(1), &tls.Config{InsecureSkipVerify: true},
			true)
	}}, //nolint:gosec // that it serves TLS
	{id: "4.2.10", title: "agent: client certificate rotates",
		reason: "the cluster renews it while it runs (cluster TestCertificatesAreRenewedWhileRunning); joined nodes rotate their own"},
	{id: "4.2.11", title: "agent: serving certificate rotates", reason: "as 4.2.10"},
	{id: "4.2.12", title: "agent: strong ciphers", probe: ciphers(1)},
	{id: "4.2.13", title: "agent: limit of processes",
		probe: field(func(k *kubeletv1beta1.KubeletConfiguration) bool { return k.PodPidsLimit != nil && *k.PodPidsLimit > 0 })},
	{id: "4.2.14", title: "agent: seccomp by default",
		probe: field(func(k *kubeletv1beta1.KubeletConfiguration) bool { return k.SeccompDefault != nil && *k.SeccompDefault })},
	{id: "4.2.15", title: "agent: IPAddressDeny", reason: "a setting of systemd for the user's service file; pods' packets do not pass it"},
	{id: "4.3.1", title: "proxy: metrics on loopback", probe: loopbackOnly(4)},
}

// at is one of the cluster's ports on loopback.
func (c *cis) at(port int) string { return fmt.Sprintf("127.0.0.1:%d", c.FirstPort+port) }

func all(probes ...func(*cis) error) func(*cis) error {
	return func(c *cis) error {
		var errs []error
		for _, p := range probes {
			errs = append(errs, p(c))
		}
		return errors.Join(errs...)
	}
}

// mode wants a path of root's with at most these permissions.
func mode(path string, most fs.FileMode) func(*cis) error {
	return func(c *cis) error { return owned(filepath.Join(c.Dir, path), most) }
}

func owned(path string, most fs.FileMode) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&^most != 0 {
		return fmt.Errorf("%s has mode %o, allowed is %o", path, info.Mode().Perm(), most)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 0 || st.Gid != 0 {
		return fmt.Errorf("%s belongs to %d:%d", path, st.Uid, st.Gid)
	}
	return nil
}

// below wants all files of a directory to be root's with at most these permissions.
func below(dir string, most fs.FileMode) func(*cis) error { return matching(dir, "", most) }

// keys and kubeconfigs are for root's eyes alone.
var keys, kubeconfigs = matching("pki", ".key", 0o600), matching(".", ".kubeconfig", 0o600)

func matching(dir, suffix string, most fs.FileMode) func(*cis) error {
	return func(c *cis) error {
		found := 0
		err := filepath.WalkDir(filepath.Join(c.Dir, dir), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err == nil && d.IsDir() && (d.Name() == "containerd" || d.Name() == "pods" || d.Name() == "run"):
				return fs.SkipDir // what containers own
			case err != nil || !d.Type().IsRegular() || !strings.HasSuffix(path, suffix):
				return err
			}
			found++
			return owned(path, most)
		})
		if err == nil && found == 0 {
			return fmt.Errorf("no file *%s in %s", suffix, dir)
		}
		return err
	}
}

func socket(path string) error {
	info, err := os.Stat(path)
	if err == nil && info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%s is no socket", path)
	}
	return err
}

func status(url string, want int) error {
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true}} //nolint:gosec // a stranger's view
	answer, err := client.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != want {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 100))
		return fmt.Errorf("%s answers %d %q to a stranger, want %d", url, answer.StatusCode, text, want)
	}
	return nil
}

func anonymous(c *cis) error {
	return errors.Join(status("https://"+c.at(0)+"/api/v1/namespaces", http.StatusUnauthorized), status("https://"+c.at(0)+"/livez",
		http.StatusOK))
}

func serves(address string, config *tls.Config, want bool) error {
	conn, err := tls.Dial("tcp", address, config)
	if err == nil {
		conn.Close()
	}
	if (err == nil) != want {
		return fmt.Errorf("%s: handshake %v", address, err)
	}
	return nil
}

// ciphers wants what is broken to be refused: RC4, 3DES, RSA key exchange, TLS 1.1.
func ciphers(port int) func(*cis) error {
	return func(c *cis) error {
		var errs []error
		for _, suite := range tls.InsecureCipherSuites() {
			if strings.Contains(suite.Name, "_CBC_SHA256") {
				continue // this client cannot offer them alone
			}
			errs = append(errs, serves(c.at(port), &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12,
				CipherSuites: []uint16{suite.ID}}, false)) //nolint:gosec // to see it refused
		}
		errs = append(errs, serves(c.at(port), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10,
			MaxVersion: tls.VersionTLS11}, false)) //nolint:gosec // to see it refused
		return errors.Join(errs...)
	}
}

func loopbackOnly(port int) func(*cis) error {
	return func(c *cis) error {
		conn, err := net.Dial("tcp", net.JoinHostPort(c.nodeIP, fmt.Sprint(c.FirstPort+port)))
		if err == nil {
			conn.Close()
			return fmt.Errorf("port %d answers on %s", c.FirstPort+port, c.nodeIP)
		}
		return nil
	}
}

func noFlag(name string) func(*cis) error { return noText("--" + name) }

func noText(text string) func(*cis) error {
	return func(c *cis) error {
		if strings.Contains(c.help, text) {
			return fmt.Errorf("`berth up --help` speaks of %s", text)
		}
		return nil
	}
}

// defaultAtLeast reads a flag's default from the help.
func defaultAtLeast(name string, least int) func(*cis) error {
	return func(c *cis) error {
		found := regexp.MustCompile(`--` + name + ` .*\(default (\d+)\)`).FindStringSubmatch(c.help)
		got := 0
		if len(found) == 2 {
			fmt.Sscan(found[1], &got) //nolint:errcheck // digits
		}
		if got < least {
			return fmt.Errorf("--%s is %d by default, want at least %d", name, got, least)
		}
		return nil
	}
}

func refuses(manifest, why string) func(*cis) error {
	return func(c *cis) error {
		out, err := c.TryKubectl(manifest, "apply", "-f", "-")
		if err == nil || !strings.Contains(strings.ToLower(out+err.Error()), strings.ToLower(why)) {
			return fmt.Errorf("got %v %s, want a refusal that says %q", err, out, why)
		}
		return nil
	}
}

func cannot(verb, resource string) func(*cis) error {
	return cannotAs("nobody", "system:authenticated", verb, resource)
}

func cannotAs(user, group, verb, resource string) func(*cis) error {
	return func(c *cis) error {
		if out, err := c.TryKubectl("", "auth", "can-i", verb, resource, "--as="+user, "--as-group="+group, "-A"); err == nil ||
			!strings.Contains(out, "no") {
			return fmt.Errorf("%s may %s %s: %s", user, verb, resource, out)
		}
		return nil
	}
}

// cannotNode: a node reads no Secret that none of its pods has, and changes no
// other node.
func cannotNode(c *cis) error {
	as := []string{"--as=system:node:other", "--as-group=system:nodes", "--as-group=system:authenticated"}
	if out, err := c.TryKubectl("", append([]string{"get", "secret", "crown"}, as...)...); err == nil {
		return fmt.Errorf("a node reads a Secret of no pod of its own: %s", out)
	}
	if out, err := c.TryKubectl("", append([]string{"label", "node", c.NodeName(), "cis=1"}, as...)...); err == nil {
		return fmt.Errorf("a node labels another: %s", out)
	}
	return nil
}

func hasAccount(c *cis) error {
	out := c.Kubectl("run", "cis", "--image=none", "--dry-run=server", "-o", "jsonpath={.spec.serviceAccountName}")
	if out = strings.TrimSpace(out); out != "default" {
		return fmt.Errorf("a pod that names no account has %q", out)
	}
	return nil
}

// lookup: the token of an account that is gone is worth nothing.
func lookup(c *cis) error {
	c.Kubectl("create", "serviceaccount", "gone")
	token := strings.TrimSpace(c.Kubectl("create", "token", "gone"))
	who := func() (string, error) {
		return c.TryKubectl("", "--token="+token, "--kubeconfig=/dev/null", "--server=https://"+c.at(0), "--insecure-skip-tls-verify",
			"auth", "whoami")
	}
	if out, err := who(); err != nil {
		return fmt.Errorf("the token is not good to begin with: %w %s", err, out)
	}
	c.Kubectl("delete", "serviceaccount", "gone")
	if out, err := who(); err == nil {
		return fmt.Errorf("the token lives on: %s", out)
	}
	return nil
}

func (c *cis) audit() []byte {
	text, err := os.ReadFile(filepath.Join(c.Dir, "logs", "audit.log"))
	if err != nil {
		c.T.Fatal(err)
	}
	return text
}

// audited: who made a Secret is there, what is in it is not.
func audited(c *cis) error {
	text := c.audit()
	if !bytes.Contains(text, []byte(`"name":"crown"`)) {
		return errors.New("the audit log does not tell of a Secret that was made")
	}
	if bytes.Contains(text, []byte("cis-clear-text-marker")) {
		return errors.New("the audit log shows a Secret")
	}
	return owned(filepath.Join(c.Dir, "logs", "audit.log"), 0o600)
}

// identities: the audit log names the controllers that wrote.
func identities(c *cis) error {
	if !bytes.Contains(c.audit(), []byte("system:serviceaccount:kube-system:service-account-controller")) {
		return errors.New("the audit log does not name the service account controller as such")
	}
	return nil
}

// encrypted: what was made is nowhere in the data directory.
func encrypted(c *cis) error {
	return filepath.WalkDir(filepath.Join(c.Dir, "etcd"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if bytes.Contains(text, []byte("cis-clear-text-marker")) {
			return fmt.Errorf("%s holds a Secret in clear text", path)
		}
		return err
	})
}

// field looks at the agent's effective configuration.
func field(good func(*kubeletv1beta1.KubeletConfiguration) bool) func(*cis) error {
	return func(c *cis) error {
		if !good(&c.kubelet) {
			return errors.New("the agent's /configz does not have it")
		}
		return nil
	}
}
