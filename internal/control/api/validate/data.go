package validate

import (
	"encoding/json"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxData is the most a secret or config map may hold, in bytes.
const maxData = v1.MaxSecretSize

const frozen = "field is immutable when `immutable` is set"

func Secret(s *v1.Secret) errs {
	data := field.NewPath("data")
	var all errs
	total := 0
	for _, key := range sorted(s.Data) {
		all = append(all, invalid(data.Key(key), key, validation.IsConfigMapKey(key))...)
		total += len(s.Data[key])
	}
	if total > maxData {
		all = append(all, field.TooLong(data, "", maxData))
	}
	needs := func(key string) {
		if _, ok := s.Data[key]; !ok {
			all = append(all, field.Required(data.Key(key), ""))
		}
	}
	holdsJSON := func(key string) {
		content, ok := s.Data[key]
		if !ok {
			all = append(all, field.Required(data.Key(key), ""))
		} else if err := json.Unmarshal(content, &map[string]any{}); err != nil {
			all = append(all, field.Invalid(data.Key(key), "<secret contents redacted>", err.Error()))
		}
	}
	switch s.Type {
	case v1.SecretTypeServiceAccountToken:
		if s.Annotations[v1.ServiceAccountNameKey] == "" {
			all = append(all, field.Required(field.NewPath("metadata", "annotations").Key(v1.ServiceAccountNameKey), ""))
		}
	case v1.SecretTypeDockercfg:
		holdsJSON(v1.DockerConfigKey)
	case v1.SecretTypeDockerConfigJson:
		holdsJSON(v1.DockerConfigJsonKey)
	case v1.SecretTypeBasicAuth:
		_, user := s.Data[v1.BasicAuthUsernameKey]
		_, password := s.Data[v1.BasicAuthPasswordKey]
		if !user && !password {
			needs(v1.BasicAuthUsernameKey)
			needs(v1.BasicAuthPasswordKey)
		}
	case v1.SecretTypeSSHAuth:
		if len(s.Data[v1.SSHAuthPrivateKey]) == 0 {
			all = append(all, field.Required(data.Key(v1.SSHAuthPrivateKey), ""))
		}
	case v1.SecretTypeTLS:
		needs(v1.TLSCertKey)
		needs(v1.TLSPrivateKeyKey)
	}
	return all
}

func SecretUpdate(changed, old *v1.Secret) errs {
	all := immutable(field.NewPath("type"), changed.Type, old.Type)
	if deref(old.Immutable) {
		if !deref(changed.Immutable) {
			all = append(all, field.Forbidden(field.NewPath("immutable"), frozen))
		}
		if !equality.Semantic.DeepEqual(changed.Data, old.Data) {
			all = append(all, field.Forbidden(field.NewPath("data"), frozen))
		}
	}
	return append(all, Secret(changed)...)
}

func ConfigMap(c *v1.ConfigMap) errs {
	data, binary := field.NewPath("data"), field.NewPath("binaryData")
	var all errs
	total := 0
	for _, key := range sorted(c.Data) {
		all = append(all, invalid(data.Key(key), key, validation.IsConfigMapKey(key))...)
		if _, twice := c.BinaryData[key]; twice {
			all = append(all, field.Invalid(data.Key(key), key, "duplicate of key present in binaryData"))
		}
		total += len(c.Data[key])
	}
	for _, key := range sorted(c.BinaryData) {
		all = append(all, invalid(binary.Key(key), key, validation.IsConfigMapKey(key))...)
		if _, twice := c.Data[key]; twice {
			all = append(all, field.Invalid(binary.Key(key), key, "duplicate of key present in data"))
		}
		total += len(c.BinaryData[key])
	}
	if total > maxData {
		all = append(all, field.TooLong(field.NewPath(""), "", maxData))
	}
	return all
}

func ConfigMapUpdate(changed, old *v1.ConfigMap) errs {
	var all errs
	if deref(old.Immutable) {
		if !deref(changed.Immutable) {
			all = append(all, field.Forbidden(field.NewPath("immutable"), frozen))
		}
		if !equality.Semantic.DeepEqual(changed.Data, old.Data) {
			all = append(all, field.Forbidden(field.NewPath("data"), frozen))
		}
		if !equality.Semantic.DeepEqual(changed.BinaryData, old.BinaryData) {
			all = append(all, field.Forbidden(field.NewPath("binaryData"), frozen))
		}
	}
	return append(all, ConfigMap(changed)...)
}

func Endpoints(e *v1.Endpoints) errs {
	var all errs
	for i := range e.Subsets {
		at, s := field.NewPath("subsets").Index(i), &e.Subsets[i]
		if len(s.Addresses) == 0 && len(s.NotReadyAddresses) == 0 {
			all = append(all, field.Required(at, "must specify `addresses` or `notReadyAddresses`"))
		}
		for k := range s.Addresses {
			all = append(all, endpointAddress(at.Child("addresses").Index(k), &s.Addresses[k])...)
		}
		for k := range s.NotReadyAddresses {
			all = append(all, endpointAddress(at.Child("notReadyAddresses").Index(k), &s.NotReadyAddresses[k])...)
		}
		for k, port := range s.Ports {
			one := at.Child("ports").Index(k)
			switch {
			case port.Name == "" && len(s.Ports) > 1:
				all = append(all, field.Required(one.Child("name"), ""))
			case port.Name != "":
				all = append(all, invalid(one.Child("name"), port.Name, validation.IsDNS1123Label(port.Name))...)
			}
			all = append(all, portNumber(one.Child("port"), port.Port)...)
			all = append(all, mustBeOneOf(one.Child("protocol"), port.Protocol, v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP)...)
			if port.AppProtocol != nil {
				all = append(all, invalid(one.Child("appProtocol"), *port.AppProtocol, validation.IsQualifiedName(*port.AppProtocol))...)
			}
		}
	}
	return all
}

func endpointAddress(p *field.Path, a *v1.EndpointAddress) errs {
	all := append(legacyIP(p.Child("ip"), a.IP), routable(p.Child("ip"), a.IP)...)
	if a.Hostname != "" {
		all = append(all, invalid(p.Child("hostname"), a.Hostname, validation.IsDNS1123Label(a.Hostname))...)
	}
	if a.NodeName != nil {
		all = append(all, invalid(p.Child("nodeName"), *a.NodeName, isSubdomain(*a.NodeName))...)
	}
	return all
}

// Lengths of an event's texts, in bytes.
const (
	maxEventWord    = 128
	maxEventMessage = 1024
)
