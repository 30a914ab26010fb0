package container

import (
	"encoding/json"
	"hash/fnv"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/dump"
)

// Hash identifies what of a container's spec may not change without a restart:
// its name and image, and nothing else. It is the value that a kubelet writes
// (kubernetes/kubernetes#124220), so that containers outlive an exchange of the
// one for the other: FNV-1a over a dump of the bytes of a JSON object.
func Hash(c *v1.Container) string { return fnv32(dump.ForHash(definition(c))) }

// SameDefinition tells whether a container that carries this hash was made from
// a definition like c. A container that carries none counts as the
// same; older versions of berth hashed the JSON itself.
func SameDefinition(hash string, c *v1.Container) bool {
	return hash == "" || hash == Hash(c) || hash == fnv32(string(definition(c)))
}

// definition is the JSON of what Hash identifies; its keys are sorted.
func definition(c *v1.Container) []byte {
	b, err := json.Marshal(map[string]string{"name": c.Name, "image": c.Image})
	if err != nil {
		panic(err) // two strings always marshal
	}
	return b
}

// fnv32 is the hash of a text in lower-case hexadecimal without padding.
func fnv32(text string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(text))
	return strconv.FormatUint(uint64(h.Sum32()), 16)
}
