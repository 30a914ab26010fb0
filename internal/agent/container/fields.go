package container

import (
	"fmt"
	"math"
	"sort"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// FieldFacts are the facts of a pod that its spec does not hold.
type FieldFacts struct {
	NodeName string
	HostIPs  []string
	PodIPs   []string
}

// envField is the value of a downward field in an environment variable.
func envField(pod *v1.Pod, f FieldFacts, path string) (string, error) {
	switch path {
	case "spec.nodeName":
		if pod.Spec.NodeName != "" {
			return pod.Spec.NodeName, nil
		}
		return f.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return first(f.HostIPs), nil
	case "status.hostIPs":
		return strings.Join(f.HostIPs, ","), nil
	case "status.podIP":
		return first(f.PodIPs), nil
	case "status.podIPs":
		return strings.Join(f.PodIPs, ","), nil
	}
	return VolumeField(pod, path)
}

// VolumeField is the value of a downward field in a volume file.
func VolumeField(pod *v1.Pod, path string) (string, error) {
	if base, key, ok := subscript(path); ok {
		switch base {
		case "metadata.annotations":
			if errs := validation.IsQualifiedName(strings.ToLower(key)); len(errs) > 0 {
				return "", fmt.Errorf("invalid key subscript in %s: %s", path, strings.Join(errs, ";"))
			}
			return pod.Annotations[key], nil
		case "metadata.labels":
			if errs := validation.IsQualifiedName(key); len(errs) > 0 {
				return "", fmt.Errorf("invalid key subscript in %s: %s", path, strings.Join(errs, ";"))
			}
			return pod.Labels[key], nil
		}
		return "", fmt.Errorf("fieldPath %q does not support subscript", path)
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return formatMap(pod.Labels), nil
	case "metadata.annotations":
		return formatMap(pod.Annotations), nil
	}
	return "", fmt.Errorf("unsupported fieldPath: %s", path)
}

// subscript splits "metadata.labels['k']".
func subscript(path string) (base, key string, ok bool) {
	rest, ok := strings.CutSuffix(path, "']")
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, "['")
}

func formatMap(m map[string]string) string {
	lines := make([]string, 0, len(m))
	for k, v := range m {
		lines = append(lines, k+"="+strconv.Quote(v))
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// ResourceField is the value of a resource field reference. def names the
// container meant when the reference names none.
func ResourceField(pod *v1.Pod, def string, ref *v1.ResourceFieldSelector, allocatable v1.ResourceList) (string, error) {
	name := ref.ContainerName
	if name == "" {
		name = def
	}
	c := findContainer(pod, name)
	if c == nil {
		return "", fmt.Errorf("container %s not found", name)
	}
	what, res, _ := strings.Cut(ref.Resource, ".")
	rn := v1.ResourceName(res)
	milli := rn == v1.ResourceCPU
	switch {
	case rn == v1.ResourceCPU, rn == v1.ResourceMemory, rn == v1.ResourceEphemeralStorage,
		strings.HasPrefix(res, v1.ResourceHugePagesPrefix):
	default:
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	var q apiresource.Quantity
	switch what {
	case "requests":
		q = c.Resources.Requests[rn]
	case "limits":
		q = effectiveLimit(pod, c, rn, allocatable)
	default:
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	return divide(q, ref.Divisor, milli), nil
}

// effectiveLimit is what really bounds the container: its own limit, else the
// pod's, else the node.
func effectiveLimit(pod *v1.Pod, c *v1.Container, name v1.ResourceName, allocatable v1.ResourceList) apiresource.Quantity {
	if q, ok := c.Resources.Limits[name]; ok && !q.IsZero() {
		return q
	}
	if pod.Spec.Resources != nil {
		if q, ok := pod.Spec.Resources.Limits[name]; ok && !q.IsZero() {
			return q
		}
	}
	if strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
		return c.Resources.Limits[name]
	}
	return allocatable[name]
}

func divide(q, divisor apiresource.Quantity, milli bool) string {
	if divisor.IsZero() {
		divisor = apiresource.MustParse("1")
	}
	a, b := q.Value(), divisor.Value()
	if milli {
		a, b = q.MilliValue(), divisor.MilliValue()
	}
	return strconv.FormatInt(int64(math.Ceil(float64(a)/float64(b))), 10)
}

// findContainer looks among all containers that have resources.
func findContainer(pod *v1.Pod, name string) *v1.Container {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == name {
			return &pod.Spec.Containers[i]
		}
	}
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == name {
			return &pod.Spec.InitContainers[i]
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name {
			return (*v1.Container)(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		}
	}
	return nil
}
