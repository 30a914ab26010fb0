package launch

import (
	"crypto/tls"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"

	"github.com/berth-dev/berth/internal/agent/config"
)

// selfSigned writes a pair of files for name.
func selfSigned(t *testing.T, name string) (certFile, keyFile string, certPEM, keyPEM []byte) {
	t.Helper()
	certPEM, keyPEM, err := certutil.GenerateSelfSignedCertKey(name, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "c"), filepath.Join(dir, "k")
	for file, data := range map[string][]byte{certFile: certPEM, keyFile: keyPEM} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile, certPEM, keyPEM
}

// TestWhereCertificatesComeFrom: what the configuration asks for comes before
// the files that the process which runs the agent keeps.
func TestWhereCertificatesComeFrom(t *testing.T) {
	theirCert, theirKey, _, _ := selfSigned(t, "configured")
	filesCert, filesKey, _, _ := selfSigned(t, "of the process")
	_, _, inlineCert, inlineKey := selfSigned(t, "of the kubeconfig")
	files := Files{ClientCert: filesCert, ClientKey: filesKey, ServingCert: filesCert, ServingKey: filesKey}
	for name, c := range map[string]struct {
		flags           []string
		files           Files
		client, serving string // common names; empty is none yet
	}{
		"the process's files": {nil, files, "of the process@", "of the process@"},
		"no files":            {nil, Files{}, "of the kubeconfig@", "n1@"},
		"tlsCertFile": {[]string{"--tls-cert-file=" + theirCert, "--tls-private-key-file=" + theirKey}, files,
			"of the process@", "configured@"},
		"rotateCertificates":               {[]string{"--rotate-certificates"}, files, "of the kubeconfig@", "of the process@"},
		"serverTLSBootstrap, not approved": {[]string{"--rotate-server-certificates"}, files, "of the process@", ""},
	} {
		t.Run(name, func(t *testing.T) {
			fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
			flags := config.AddFlags(fs)
			path := kubeconfig(t, &rest.Config{Host: "https://127.0.0.1:1", TLSClientConfig: rest.TLSClientConfig{CertData: inlineCert,
				KeyData: inlineKey}})
			if err := fs.Parse(append(c.flags, "--hostname-override=n1", "--cert-dir="+t.TempDir(), "--kubeconfig="+path)); err != nil {
				t.Fatal(err)
			}
			effective, err := config.Load(flags)
			if err != nil {
				t.Fatal(err)
			}
			out, parts, err := Build(t.Context(), Config{Effective: effective, Files: c.files, Log: slog.New(slog.DiscardHandler),
				Metrics: prometheus.NewRegistry()})
			if err != nil {
				t.Fatal(err)
			}
			if len(parts) == 0 {
				t.Error("nothing keeps the certificates")
			}
			if got := commonName(out.API.Certificate()); len(c.client) > len(got) || got[:len(c.client)] != c.client {
				t.Errorf("the client certificate is of %q, want %q", got, c.client)
			}
			shown, err := out.TLS.GetCertificate(nil)
			if c.serving == "" {
				if err == nil {
					t.Errorf("serves with %q before it was approved", commonName(shown))
				}
				return
			}
			if got := commonName(shown); err != nil || len(c.serving) > len(got) || got[:len(c.serving)] != c.serving {
				t.Errorf("the serving certificate is of %q (%v), want %q", got, err, c.serving)
			}
		})
	}
}

func commonName(pair *tls.Certificate) string {
	if l := leaf(pair); l != nil {
		return l.Subject.CommonName
	}
	return ""
}
