package api

import (
	"fmt"
	"strings"
)

// flags answers /flagz: what this server was told, under the names that
// upstream's flags have. They are paths and choices, no secrets.
type flags map[string]string

// GetFlagz implements flagz.Reader.
func (f flags) GetFlagz() map[string]string { return f }

// flagsOf names what was set; what is empty is left out.
func flagsOf(c *Config) flags {
	all := flags{
		"bind-address":                     c.BindAddress,
		"service-cluster-ip-range":         strings.Join(c.ServiceCIDRs, ","),
		"service-node-port-range":          c.NodePortRange,
		"enable-priority-and-fairness":     fmt.Sprint(c.PriorityAndFairness),
		"service-account-issuer":           c.PKI.ServiceAccountIssuer,
		"service-account-key-file":         strings.Join(c.PKI.ServiceAccountPublicKeys, ","),
		"service-account-signing-key-file": c.PKI.ServiceAccountKey,
		"client-ca-file":                   c.PKI.ClientCA,
		"tls-cert-file":                    c.PKI.ServingCert,
		"tls-private-key-file":             c.PKI.ServingKey,
		"kubelet-certificate-authority":    c.PKI.KubeletCA,
		"kubelet-client-certificate":       c.PKI.KubeletClientCert,
		"kubelet-client-key":               c.PKI.KubeletClientKey,
		"requestheader-client-ca-file":     c.PKI.FrontProxyCA,
		"proxy-client-cert-file":           c.PKI.FrontProxyCert,
		"proxy-client-key-file":            c.PKI.FrontProxyKey,
	}
	if c.Port != 0 {
		all["secure-port"] = fmt.Sprint(c.Port)
	}
	if c.AdvertiseAddress != nil {
		all["advertise-address"] = c.AdvertiseAddress.String()
	}
	if o := c.Options; o != nil {
		all["enable-admission-plugins"] = strings.Join(o.Admission.EnablePlugins, ",")
		all["disable-admission-plugins"] = strings.Join(o.Admission.DisablePlugins, ",")
		all["admission-control-config-file"] = o.Admission.ConfigFile
	}
	for name, value := range all {
		if value == "" {
			delete(all, name)
		}
	}
	return all
}
