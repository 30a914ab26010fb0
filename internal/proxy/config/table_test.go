package config

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
)

// tableFile says of every field what becomes of it.
const tableFile = "../../../docs/proxy-configuration.md"

// kubeadm is the configuration that kubeadm writes for kube-proxy.
const kubeadm = `bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection: {acceptContentTypes: "", burst: 0, contentType: "", kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 0}
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack: {maxPerCore: null, min: null, tcpBeLiberal: false, tcpCloseWaitTimeout: null, tcpEstablishedTimeout: null, udpStreamTimeout: ` +
	`0s, udpTimeout: 0s}
detectLocal: {bridgeInterface: "", interfaceNamePrefix: ""}
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables: {localhostNodePorts: null, masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
ipvs: {excludeCIDRs: null, minSyncPeriod: 0s, scheduler: "", strictARP: false, syncPeriod: 0s, tcpFinTimeout: 0s, tcpTimeout: 0s, ` +
	`udpTimeout: 0s}
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}
metricsBindAddress: ""
mode: ""
nftables: {masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
windowsRunAsService: false
winkernel: {enableDSR: false, forwardHealthCheckVip: false, networkName: "", rootHnsEndpointName: "", sourceVip: ""}
`

// TestKubeadm takes what most clusters have as it is, and what kube-proxy's
// --write-config-to makes of it too.
func TestKubeadm(t *testing.T) {
	if _, err := load(t, kubeadm); err != nil {
		t.Error(err)
	}
	defaulted := strings.NewReplacer("localhostNodePorts: null", "localhostNodePorts: true", "minSyncPeriod: 0s, syncPeriod: 0s}\nipvs",
		"minSyncPeriod: 1s, syncPeriod: 30s}\nipvs",
		"strictARP: false, syncPeriod: 0s", "strictARP: false, syncPeriod: 30s", "masqueradeBit: null", "masqueradeBit: 14",
		"flushFrequency: 0", "flushFrequency: 5s").Replace(kubeadm)
	if _, err := load(t, defaulted); err != nil {
		t.Error(err)
	}
}

// samples are values that are not a field's default, where its type alone
// does not say one that is valid.
var samples = map[string]string{
	"mode": `"nftables"`, "bindAddress": `"192.0.2.1"`, "healthzBindAddress": `"127.0.0.1:10256"`, "metricsBindAddress": `"0.0.0.0:10249"`,
	"clusterCIDR": `"10.1.0.0/16"`, "nodePortAddresses": `["192.0.2.0/24"]`, "detectLocalMode": `"NodeCIDR"`,
	"featureGates":   `{AllowServiceExternalIPs: false}`,
	"logging.format": `"json"`, "logging.vmodule": `[{filePattern: a, verbosity: 1}]`, "logging.flushFrequency": "7s",
	"nftables.minSyncPeriod": "2s",
	"oomScoreAdj":            "-7", "ipvs.excludeCIDRs": `["192.0.2.0/24"]`, "ipvs.syncPeriod": "7s",
}

// fields lists every leaf of a configuration with a value for it.
func fields(t reflect.Type, path string, out map[string]string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" && f.Anonymous {
			if f.Type.Name() != "TypeMeta" {
				fields(f.Type, path, out)
			}
			continue
		}
		at, ft := strings.TrimPrefix(path+"."+name, "."), f.Type
		if ft.Kind() == reflect.Pointer {
			ft = ft.Elem()
		}
		value := samples[at]
		switch {
		case value != "":
		case ft == reflect.TypeFor[resource.QuantityValue]():
			value = `"64Ki"`
		case ft.Name() == "Duration":
			value = "7s"
		case ft.Kind() == reflect.Struct:
			fields(ft, at, out)
			continue
		case ft.Kind() == reflect.Bool:
			value = "true"
		case ft.Kind() == reflect.String:
			value = `"some"`
		default:
			value = "7"
		}
		out[at] = value
	}
}

// TestEveryField holds the table in the docs to the code: each field there is
// stands in it, what is "refused" is refused by its name, all else is taken.
func TestEveryField(t *testing.T) {
	doc, err := os.ReadFile(tableFile)
	if err != nil {
		t.Fatal(err)
	}
	says := map[string]string{}
	for _, line := range strings.Split(string(doc), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !strings.HasPrefix(strings.TrimSpace(cells[1]), "`") || strings.Contains(cells[1], "`-") {
			continue
		}
		for _, name := range strings.Split(cells[1], ",") {
			says[strings.Trim(strings.TrimSpace(name), "`")] = strings.TrimSpace(cells[2])
		}
	}
	all := map[string]string{}
	fields(reflect.TypeFor[KubeProxyConfiguration](), "", all)
	for at, value := range all {
		verdict, ok := says[at]
		if !ok {
			t.Errorf("%s does not stand in the table", at)
			continue
		}
		delete(says, at)
		file, close := "", ""
		parts := strings.Split(at, ".")
		for _, p := range parts[:len(parts)-1] {
			file, close = file+p+": {", close+"}"
		}
		_, err := load(t, fmt.Sprintf("%s%s: %s%s\n", file, parts[len(parts)-1], value, close))
		switch {
		case strings.HasPrefix(verdict, "refused"):
			if err == nil || !strings.Contains(err.Error(), parts[0]) {
				t.Errorf("%s: %s is said to be refused, got %v", at, value, err)
			}
		case err != nil:
			t.Errorf("%s: %s is said to be taken, got %v", at, value, err)
		}
	}
	for name := range says {
		t.Errorf("the table has %s, which is no field", name)
	}
}

// TestEveryFlag holds the table of flags to those there are.
func TestEveryFlag(t *testing.T) {
	doc, err := os.ReadFile(tableFile)
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]bool{}
	for _, line := range strings.Split(string(doc), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !strings.Contains(cells[1], "`-") || strings.Contains(cells[2], "refused") {
			continue
		}
		for _, name := range strings.Split(cells[1], ",") {
			said[strings.Trim(strings.TrimSpace(name), "`-")] = false
		}
	}
	set := pflag.NewFlagSet("proxy", pflag.ContinueOnError)
	AddFlags(set)
	set.VisitAll(func(f *pflag.Flag) {
		for name := range said {
			if prefix, wild := strings.CutSuffix(name, "*"); name == f.Name || wild && strings.HasPrefix(f.Name, prefix) {
				said[name] = true
				return
			}
		}
		t.Errorf("--%s does not stand in the table", f.Name)
	})
	for name, there := range said {
		if !there {
			t.Errorf("the table has --%s, which is no flag", name)
		}
	}
}
