package validate

import (
	"crypto/x509"
	"encoding/pem"
	"strings"

	certificates "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxBundle bounds the anchors of one bundle, in bytes.
const maxBundle = 1 << 20

// ClusterTrustBundle checks the name against the signer, which owns all names that begin
// with its own, and that the anchors are CAs, each once.
func ClusterTrustBundle(b *certificates.ClusterTrustBundle) errs {
	var all errs
	all = append(all, invalid(field.NewPath("metadata", "name"), b.Name, bundleName(b.Name, b.Spec.SignerName))...)
	if b.Spec.SignerName != "" {
		all = append(all, signerName(specPath.Child("signerName"), b.Spec.SignerName)...)
	}
	return append(all, anchorsGood(specPath.Child("trustBundle"), b.Spec.TrustBundle)...)
}

// bundleName wants the prefix of the signer, and a subdomain after it.
func bundleName(name, signer string) []string {
	if signer == "" {
		if strings.Contains(name, ":") {
			return []string{"ClusterTrustBundle without signer name must not have \":\" in its name"}
		}
		return isSubdomain(name)
	}
	prefix := strings.ReplaceAll(signer, "/", ":") + ":"
	if !strings.HasPrefix(name, prefix) {
		return []string{"ClusterTrustBundle for signerName " + signer + " must be named with prefix " + prefix}
	}
	return isSubdomain(strings.TrimPrefix(name, prefix))
}

// signerOfBundle is the signer whose bundle has this name, empty for a bundle
// of no one's.
func signerOfBundle(name string) string {
	end := strings.LastIndex(name, ":")
	if end < 0 {
		return ""
	}
	return strings.ReplaceAll(name[:end], ":", "/")
}

func anchorsGood(at *field.Path, text string) errs {
	if text == "" {
		return errs{field.Required(at, "trust anchors are required")}
	}
	if len(text) > maxBundle {
		return errs{field.TooLong(at, "", maxBundle)}
	}
	bad := func(why string) errs { return errs{field.Invalid(at, "<value omitted>", why)} }
	seen := map[string]bool{}
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" || len(block.Headers) > 0 {
			return bad("every block must be a CERTIFICATE without headers")
		}
		c, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil:
			return bad("a block does not parse as X.509")
		case !c.IsCA || !c.BasicConstraintsValid:
			return bad("every certificate must be that of an authority")
		case seen[string(block.Bytes)]:
			return bad("a certificate is there twice")
		}
		seen[string(block.Bytes)] = true
	}
	if len(seen) == 0 {
		return bad("at least one certificate is required")
	}
	return nil
}

func ClusterTrustBundleUpdate(changed, old *certificates.ClusterTrustBundle) errs {
	return append(ClusterTrustBundle(changed), immutable(specPath.Child("signerName"), changed.Spec.SignerName, old.Spec.SignerName)...)
}
