package snapshot

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

const (
	// formatVersion is the version of the file's form. It grows when an older
	// berth would not find its way around any more.
	formatVersion = 1
	// headerSize is the length of the clear header, padded with spaces.
	headerSize = 4096
	// magic begins a file; the format's version follows it on the first line.
	magic = "berth-snapshot "
	// Suffix ends the names of snapshot files.
	Suffix = ".berthsnap"

	maxManifest   = 1 << 20  // bytes of the manifest
	maxSmallPart  = 4 << 20  // bytes of a part that is not the store
	maxStorePart  = 64 << 30 // bytes of the store
	maxParts      = 256
	maxNameLength = 128
)

// sealing says what a payload is closed with.
type sealing string

const (
	// Unsealed is a payload that anybody can read.
	Unsealed sealing = "no"
	// SealedByPassphrase needs the passphrase.
	SealedByPassphrase sealing = "passphrase"
	// SealedByKey needs the key file with the secret key.
	SealedByKey sealing = "key"
)

// Header is what a file says of itself in clear text. A sealed file repeats it
// inside; a header that somebody changed is refused when the file is opened.
type Header struct {
	Name    string    `json:"name"`
	Time    time.Time `json:"time"`
	Cluster string    `json:"cluster"` // instance name
	Node    string    `json:"node"`
	Role    string    `json:"role,omitempty"`
	DataDir string    `json:"dataDir"`
	// Berth, Etcd and Layout are the versions that wrote it: the program, the
	// store, and the data directory's layout.
	Berth  string `json:"berth"`
	Etcd   string `json:"etcd"`
	Layout int    `json:"layout"`
	// Revision is the store's latest, StoreBytes its size.
	Revision   int64   `json:"revision"`
	StoreBytes int64   `json:"storeBytes"`
	Sealed     sealing `json:"sealed"`
	// Scheduled is true for those that --snapshot-every made.
	Scheduled bool `json:"scheduled,omitempty"`
	// PayloadBytes is the length of what follows the header.
	PayloadBytes int64 `json:"payloadBytes,omitempty"`
}

// filePart is one file inside a snapshot.
type filePart struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// manifest is the first entry of the payload: the header, and every part that
// follows, in order.
type manifest struct {
	Header
	Parts []filePart `json:"parts"`
}

const (
	manifestName = "manifest.json"
	// StoreName is etcd's snapshot with its own SHA-256 at the end.
	StoreName = "store.db"
	// SettingsName are the cluster's settings.
	SettingsName = "cluster.json"
	// PKIDir holds CAs, keys and, unless the administrator brought others, the
	// encryption keys.
	PKIDir = "pki/"
	// ProviderConfigName is an --encryption-provider-config of the user's own.
	ProviderConfigName = "encryption-provider-config.yaml"
)

// partName is what a part below pki/ may be called: one plain file name.
var partName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// FileName is what a snapshot's own name may be.
var fileName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// checkName refuses names that are not one plain file name.
func checkName(name string) error {
	if len(name) > maxNameLength || !fileName.MatchString(name) {
		return fmt.Errorf("snapshot name %q: allowed are letters, digits, '.', '_' and '-', at most %d, and a letter or digit first", name,
			maxNameLength)
	}
	return nil
}

// DefaultName is time and node: names sort by age.
func DefaultName(node string, now time.Time) string {
	clean := regexp.MustCompile(`[^A-Za-z0-9._-]+`).ReplaceAllString(node, "-")
	return now.UTC().Format("20060102T150405Z") + "-" + strings.Trim(clean, "-.")
}

// newerError says that a newer berth is needed to open a file.
type newerError struct {
	File, Wrote, Reads string
}

func (e *newerError) Error() string {
	return fmt.Sprintf("snapshot %s was written with %s, and this berth reads up to %s: use a berth that is at least as new", e.File,
		e.Wrote,
		e.Reads)
}

// Reader is what a program can open.
type Reader struct {
	Etcd   string // version of its etcd
	Layout int    // of its data directory
}

// CanOpen is an error if r is too old for the file.
func (h *Header) CanOpen(r Reader) error {
	if h.Layout > r.Layout {
		return &newerError{h.Name, fmt.Sprintf("data layout %d (berth %s)", h.Layout, h.Berth), fmt.Sprintf("layout %d", r.Layout)}
	}
	var wrote, reads [2]int
	if _, err := fmt.Sscanf(h.Etcd, "%d.%d", &wrote[0], &wrote[1]); err != nil {
		return fmt.Errorf("snapshot %s: its etcd version %q is not a version", h.Name, h.Etcd)
	}
	if _, err := fmt.Sscanf(r.Etcd, "%d.%d", &reads[0], &reads[1]); err != nil {
		return fmt.Errorf("the etcd version %q is not a version", r.Etcd)
	}
	if wrote[0] > reads[0] || wrote[0] == reads[0] && wrote[1] > reads[1] {
		return &newerError{h.Name, "etcd " + h.Etcd + " (berth " + h.Berth + ")", "etcd " + r.Etcd}
	}
	return nil
}

// encode is the header's block.
func (h *Header) encode() ([]byte, error) {
	data, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encoding the header of snapshot %s: %w", h.Name, err)
	}
	block := append([]byte(fmt.Sprintf("%s%d\n", magic, formatVersion)), data...)
	if len(block) >= headerSize {
		return nil, fmt.Errorf("encoding the header of snapshot %s: it has %d bytes, allowed are %d", h.Name, len(block), headerSize-1)
	}
	block = append(block, bytes.Repeat([]byte{' '}, headerSize-1-len(block))...)
	return append(block, '\n'), nil
}

var errNoSnapshot = errors.New("it is not a snapshot of berth")

// decodeHeader reads a header's block of headerSize bytes. file is for errors.
func decodeHeader(file string, block []byte) (h Header, err error) {
	rest, ok := bytes.CutPrefix(block, []byte(magic))
	if !ok {
		return h, fmt.Errorf("reading %s: %w", file, errNoSnapshot)
	}
	line, rest, ok := bytes.Cut(rest, []byte("\n"))
	var version int
	if n, err := fmt.Sscanf(string(line), "%d", &version); !ok || n != 1 || err != nil || fmt.Sprint(version) != string(line) ||
		version < 1 {
		return h, fmt.Errorf("reading %s: %w", file, errNoSnapshot)
	}
	if version > formatVersion {
		return h, &newerError{file, fmt.Sprintf("snapshot format %d", version), fmt.Sprintf("format %d", formatVersion)}
	}
	if len(block) != headerSize {
		return h, fmt.Errorf("reading %s: its header has %d bytes instead of %d: the file is cut off", file, len(block), headerSize)
	}
	if err := strictJSON(rest, &h); err != nil {
		return h, fmt.Errorf("reading the header of %s: %w", file, err)
	}
	return h, h.check(file)
}

// strictJSON decodes one value and refuses unknown fields and what follows.
func strictJSON(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if rest := bytes.TrimSpace(data[d.InputOffset():]); len(rest) > 0 {
		return fmt.Errorf("%d bytes follow the value", len(rest))
	}
	return nil
}

func (h *Header) check(file string) error {
	if err := checkName(h.Name); err != nil {
		return fmt.Errorf("reading %s: %w", file, err)
	}
	switch {
	case h.Sealed != Unsealed && h.Sealed != SealedByPassphrase && h.Sealed != SealedByKey:
		return fmt.Errorf("reading %s: sealed %q: allowed are %s, %s and %s", file, h.Sealed, Unsealed, SealedByPassphrase, SealedByKey)
	case h.Time.IsZero() || h.Revision < 1 || h.StoreBytes < 1 || h.StoreBytes > maxStorePart || h.PayloadBytes < 0:
		return fmt.Errorf("reading %s: its header holds an impossible time, revision or size", file)
	case strings.ContainsFunc(h.Cluster+h.Node+h.Role+h.DataDir+h.Berth+h.Etcd, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("reading %s: its header holds control characters", file)
	}
	return nil
}

// same says whether the manifest inside repeats the header outside.
func (m *manifest) same(h Header) bool {
	inside := m.Header
	inside.PayloadBytes, h.PayloadBytes = 0, 0
	if !inside.Time.Equal(h.Time) {
		return false
	}
	inside.Time, h.Time = time.Time{}, time.Time{}
	return inside == h
}

// checkParts refuses names that lead anywhere else, sizes beyond the bounds, and
// a list that lacks the store or the settings.
func (m *manifest) checkParts() error {
	if len(m.Parts) > maxParts {
		return fmt.Errorf("it has %d parts, allowed are %d", len(m.Parts), maxParts)
	}
	seen := map[string]bool{}
	for _, p := range m.Parts {
		limit := int64(maxSmallPart)
		switch below, inPKI := strings.CutPrefix(p.Name, PKIDir); {
		case p.Name == StoreName:
			limit = maxStorePart
		case p.Name == SettingsName, p.Name == ProviderConfigName:
		case inPKI && partName.MatchString(below):
		default:
			return fmt.Errorf("it has a part %q, which no snapshot has", p.Name)
		}
		if seen[p.Name] {
			return fmt.Errorf("it has the part %s twice", p.Name)
		}
		seen[p.Name] = true
		if p.Bytes < 0 || p.Bytes > limit {
			return fmt.Errorf("its part %s has %d bytes, allowed are %d", p.Name, p.Bytes, limit)
		}
		if len(p.SHA256) != 64 {
			return fmt.Errorf("its part %s has no SHA-256", p.Name)
		}
	}
	for _, need := range []string{StoreName, SettingsName, PKIDir + "ca.crt", PKIDir + "ca.key", PKIDir + "sa.key"} {
		if !seen[need] {
			return fmt.Errorf("it lacks %s", need)
		}
	}
	return nil
}
