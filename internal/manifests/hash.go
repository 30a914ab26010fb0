package manifests

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
)

// hash is equal for documents that are applied alike.
func hash(d manifest) string {
	sum := sha256.New()
	sum.Write([]byte(d.File + "\x00"))
	sum.Write(d.Body)
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

// where names a document.
func (d manifest) where() string { return fmt.Sprintf("%s document %d", d.File, d.Number) }

var notInNames = regexp.MustCompile(`[^a-z0-9.]+`)

// recordName is the name of the ConfigMap that holds a file's record.
func recordName(file string) string {
	sum := sha256.Sum256([]byte(file))
	name := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(filepath.ToSlash(file)), "-"), "-.")
	name = strings.Trim(name[:min(len(name), 100)], "-.")
	return "berth-manifest-" + strings.ReplaceAll(name, ".", "-") + "-" + hex.EncodeToString(sum[:4])
}
