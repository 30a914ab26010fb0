package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"filippo.io/age"
)

const (
	minPassphrase = 8
	// scryptWork is log2 of scrypt's cost: about a second and 256 MiB.
	// maxScryptWork bounds what a file may ask for (1 GiB).
	scryptWork, maxScryptWork = 18, 20
	maxKeyFile                = 64 << 10
)

// Keys seal or open snapshots. The zero value seals and opens nothing.
type Keys struct {
	sealing    sealing
	recipients []age.Recipient
	identities []age.Identity
}

// NoKeys is for files that lie open.
func NoKeys() Keys { return Keys{sealing: Unsealed} }

// Passphrase seals and opens with a passphrase.
func Passphrase(phrase string) (Keys, error) {
	if len(phrase) < minPassphrase {
		return Keys{}, fmt.Errorf("the passphrase has %d bytes: at least %d are needed", len(phrase), minPassphrase)
	}
	recipient, err := age.NewScryptRecipient(phrase)
	if err != nil {
		return Keys{}, errors.New("the passphrase cannot be used") // the cause could repeat it
	}
	recipient.SetWorkFactor(scryptWork)
	identity, err := age.NewScryptIdentity(phrase)
	if err != nil {
		return Keys{}, errors.New("the passphrase cannot be used")
	}
	identity.SetMaxWorkFactor(maxScryptWork)
	return Keys{SealedByPassphrase, []age.Recipient{recipient}, []age.Identity{identity}}, nil
}

// PassphraseFile reads a passphrase: the file's first line.
func PassphraseFile(file string) (Keys, error) {
	data, err := readBounded(file, maxKeyFile)
	if err != nil {
		return Keys{}, fmt.Errorf("reading the passphrase: %w", err)
	}
	line, rest, _ := bytes.Cut(data, []byte("\n"))
	if len(bytes.TrimSpace(rest)) > 0 {
		return Keys{}, fmt.Errorf("passphrase file %s: it has more than one line; a key file goes to --key-file", file)
	}
	keys, err := Passphrase(string(bytes.TrimSuffix(line, []byte("\r"))))
	if err != nil {
		return Keys{}, fmt.Errorf("passphrase file %s: %w", file, err)
	}
	return keys, nil
}

// KeyFile reads a key file as age-keygen writes it. One with the secret key
// (AGE-SECRET-KEY-1...) seals and opens; one with the public key alone (age1...)
// seals: a host that holds only that cannot open its old snapshots.
func KeyFile(file string) (Keys, error) {
	data, err := readBounded(file, maxKeyFile)
	if err != nil {
		return Keys{}, fmt.Errorf("reading the key file: %w", err)
	}
	keys := Keys{sealing: SealedByKey}
	if recipients, err := age.ParseRecipients(bytes.NewReader(data)); err == nil {
		keys.recipients = recipients
		return keys, nil
	}
	identities, err := age.ParseIdentities(bytes.NewReader(data))
	if err != nil {
		// The cause may quote the file.
		return Keys{}, fmt.Errorf("key file %s: it holds no age key: allowed are lines AGE-SECRET-KEY-1... or age1..., as `berth snapshot "+
			"keygen` and age-keygen write them", file)
	}
	for _, id := range identities {
		x, ok := id.(*age.X25519Identity)
		if !ok {
			return Keys{}, fmt.Errorf("key file %s: only X25519 keys (AGE-SECRET-KEY-1...) are taken", file)
		}
		keys.recipients, keys.identities = append(keys.recipients, x.Recipient()), append(keys.identities, id)
	}
	return keys, nil
}

// NewKey makes a key: the text of a key file, and the public half.
func NewKey() (text, public string, err error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return "", "", fmt.Errorf("making a key: %w", err)
	}
	public = id.Recipient().String()
	return "# public key: " + public + "\n" + id.String() + "\n", public, nil
}

func readBounded(file string, limit int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		return nil, fmt.Errorf("%s has more than %d bytes", file, limit)
	}
	return data, err
}

// seal returns what is written to be sealed into w; Close ends it.
func (k Keys) seal(w io.Writer) (io.WriteCloser, error) {
	if k.sealing == Unsealed {
		return nopCloser{w}, nil
	}
	if len(k.recipients) == 0 {
		return nil, errors.New("no passphrase and no key file is given to seal with")
	}
	return age.Encrypt(w, k.recipients...)
}

// OpenError says that a file cannot be opened with these keys.
type OpenError struct {
	File string
	Need sealing
}

func (e *OpenError) Error() string {
	how := "give its passphrase (--passphrase-file, or BERTH_SNAPSHOT_PASSPHRASE)"
	if e.Need == SealedByKey {
		how = "give the file with its secret key (--key-file)"
	}
	return fmt.Sprintf("snapshot %s is sealed by a %s, and what was given does not open it: %s", e.File, e.Need, how)
}

// open returns the payload in clear text.
func (k Keys) open(file string, sealing sealing, r io.Reader) (io.Reader, error) {
	if sealing == Unsealed {
		return r, nil
	}
	if len(k.identities) == 0 || k.sealing != sealing {
		return nil, &OpenError{file, sealing}
	}
	clear, err := age.Decrypt(r, k.identities...)
	var none *age.NoIdentityMatchError
	if errors.As(err, &none) {
		return nil, &OpenError{file, sealing}
	}
	if err != nil {
		return nil, fmt.Errorf("opening snapshot %s: its seal is broken: %w", file, err)
	}
	return clear, nil
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }
