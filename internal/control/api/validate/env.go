package validate

import (
	"fmt"
	"regexp"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// What the downward API serves, by where: environment variables see the pod's
// addresses, files see whole maps.
var (
	envFields = sets.New("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
		"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs")
	fileFields = sets.New("metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "metadata.uid")
	// resourceFields are the amounts that can be read, huge pages aside.
	resourceFields = sets.New("limits.cpu", "limits.memory", "limits.ephemeral-storage",
		"requests.cpu", "requests.memory", "requests.ephemeral-storage")
	// divisors are the units an amount can be expressed in.
	cpuDivisors    = sets.New("1m", "1")
	memoryDivisors = sets.New("1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei")
)

func env(p *field.Path, vars []v1.EnvVar, volumes map[string]*v1.VolumeSource) errs {
	var all errs
	for i := range vars {
		at, e := p.Index(i), &vars[i]
		all = append(all, named(at.Child("name"), e.Name, validation.IsRelaxedEnvVarName)...)
		if e.ValueFrom != nil {
			all = append(all, envSource(at.Child("valueFrom"), e, volumes)...)
		}
	}
	return all
}

func envSource(p *field.Path, e *v1.EnvVar, volumes map[string]*v1.VolumeSource) errs {
	var all errs
	from, sources := e.ValueFrom, 0
	if from.FieldRef != nil {
		sources++
		all = append(all, fieldRef(p.Child("fieldRef"), from.FieldRef, envFields)...)
	}
	if from.ResourceFieldRef != nil {
		sources++
		all = append(all, resourceFieldRef(p.Child("resourceFieldRef"), from.ResourceFieldRef, false)...)
	}
	if ref := from.ConfigMapKeyRef; ref != nil {
		sources++
		all = append(all, invalid(p.Child("configMapKeyRef", "name"), ref.Name, isSubdomain(ref.Name))...)
		all = append(all, named(p.Child("configMapKeyRef", "key"), ref.Key, validation.IsConfigMapKey)...)
	}
	if ref := from.SecretKeyRef; ref != nil {
		sources++
		all = append(all, invalid(p.Child("secretKeyRef", "name"), ref.Name, isSubdomain(ref.Name))...)
		all = append(all, named(p.Child("secretKeyRef", "key"), ref.Key, validation.IsConfigMapKey)...)
	}
	if ref := from.FileKeyRef; ref != nil {
		sources++
		all = append(all, fileKeyRef(p.Child("fileKeyRef"), ref, volumes)...)
	}
	switch {
	case sources == 0:
		all = append(all, field.Invalid(p, "",
			"must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"))
	case e.Value != "":
		all = append(all, field.Invalid(p, "", "may not be specified when `value` is not empty"))
	case sources > 1:
		all = append(all, field.Invalid(p, "", "may not have more than one field specified at a time"))
	}
	return all
}

func fileKeyRef(p *field.Path, ref *v1.FileKeySelector, volumes map[string]*v1.VolumeSource) errs {
	all := named(p.Child("key"), ref.Key, validation.IsRelaxedEnvVarName)
	if ref.VolumeName == "" {
		all = append(all, field.Required(p.Child("volumeName"), ""))
	} else if v, ok := volumes[ref.VolumeName]; !ok {
		all = append(all, field.NotFound(p.Child("volumeName"), ref.VolumeName))
	} else if v.EmptyDir == nil {
		all = append(all, field.Invalid(p.Child("volumeName"), ref.VolumeName, "referenced volume must be of type emptyDir"))
	}
	if ref.Path == "" {
		return append(all, field.Required(p.Child("path"), ""))
	}
	return append(all, localFile(p.Child("path"), ref.Path)...)
}

// subscript is a map field with one key: metadata.labels['key'].
var subscript = regexp.MustCompile(`^(metadata\.(?:labels|annotations))\['(.*)'\]$`)

func fieldRef(p *field.Path, ref *v1.ObjectFieldSelector, supported sets.Set[string]) errs {
	if ref.APIVersion == "" {
		return errs{field.Required(p.Child("apiVersion"), "")}
	}
	if ref.FieldPath == "" {
		return errs{field.Required(p.Child("fieldPath"), "")}
	}
	at := p.Child("fieldPath")
	if ref.APIVersion != "v1" {
		return errs{field.Invalid(p.Child("apiVersion"), ref.APIVersion, "only v1 is supported")}
	}
	if m := subscript.FindStringSubmatch(ref.FieldPath); m != nil {
		if m[1] == "metadata.annotations" {
			return invalid(at, m[2], validation.IsQualifiedName(strings.ToLower(m[2])))
		}
		return invalid(at, m[2], validation.IsQualifiedName(m[2]))
	}
	if supported.Has(ref.FieldPath) {
		return nil
	}
	if envFields.Has(ref.FieldPath) || fileFields.Has(ref.FieldPath) {
		return errs{field.NotSupported(at, ref.FieldPath, sets.List(supported))}
	}
	return errs{field.Invalid(at, ref.FieldPath, fmt.Sprintf("error converting fieldPath: field label not supported: %s", ref.FieldPath))}
}

// resourceFieldRef reads a container's own amounts; in a volume it must say
// whose.
func resourceFieldRef(p *field.Path, ref *v1.ResourceFieldSelector, inVolume bool) errs {
	if inVolume && ref.ContainerName == "" {
		return errs{field.Required(p.Child("containerName"), "")}
	}
	if ref.Resource == "" {
		return errs{field.Required(p.Child("resource"), "")}
	}
	page := strings.HasPrefix(ref.Resource, "limits."+v1.ResourceHugePagesPrefix) || strings.HasPrefix(ref.Resource,
		"requests."+v1.ResourceHugePagesPrefix)
	if !page && !resourceFields.Has(ref.Resource) {
		return errs{field.NotSupported(p.Child("resource"), ref.Resource, sets.List(resourceFields))}
	}
	return divisor(p.Child("divisor"), strings.HasSuffix(ref.Resource, ".cpu"), ref.Divisor)
}

func divisor(p *field.Path, cpu bool, d resource.Quantity) errs {
	if d.IsZero() {
		return nil
	}
	supported := memoryDivisors
	if cpu {
		supported = cpuDivisors
	}
	if !supported.Has(d.String()) {
		return errs{field.Invalid(p, "divisor", fmt.Sprintf("only divisor's values %s are supported", strings.Join(sets.List(supported),
			", ")))}
	}
	return nil
}

// envObject wants a name, or the beginning of one, as upstream does.
func envObject(p *field.Path, name string) errs {
	return named(p, name, func(v string) []string { return apivalidation.NameIsDNSSubdomain(v, true) })
}

func envFrom(p *field.Path, sources []v1.EnvFromSource) errs {
	var all errs
	for i := range sources {
		at, s := p.Index(i), &sources[i]
		if s.Prefix != "" {
			all = append(all, invalid(at.Child("prefix"), s.Prefix, validation.IsRelaxedEnvVarName(s.Prefix))...)
		}
		switch {
		case s.ConfigMapRef != nil && s.SecretRef != nil:
			all = append(all, field.Invalid(at, "", "may not have more than one field specified at a time"))
		case s.ConfigMapRef != nil:
			all = append(all, envObject(at.Child("configMapRef", "name"), s.ConfigMapRef.Name)...)
		case s.SecretRef != nil:
			all = append(all, envObject(at.Child("secretRef", "name"), s.SecretRef.Name)...)
		default:
			all = append(all, field.Invalid(at, "", "must specify one of: `configMapRef` or `secretRef`"))
		}
	}
	return all
}
