package container

import (
	"bufio"
	"fmt"
	"net"
	"sort"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// EnvVar is one variable of a container's environment.
type EnvVar struct {
	Name, Value string
}

// Env is the environment of a container: envFrom in order, then env in order,
// then those service variables that no one set. The order of the result is
// the order in which names first appeared, service variables sorted last.
func Env(in Input, c *v1.Container) ([]EnvVar, error) {
	b := envBuilder{in: in, c: c, values: map[string]string{}, services: serviceEnv(in)}
	for i := range c.EnvFrom {
		if err := b.from(&c.EnvFrom[i]); err != nil {
			return nil, err
		}
	}
	for i := range c.Env {
		if err := b.variable(&c.Env[i]); err != nil {
			return nil, err
		}
	}
	names := make([]string, 0, len(b.services))
	for name := range b.services {
		if _, set := b.values[name]; !set {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	for _, name := range names {
		b.set(name, b.services[name])
	}
	// Plugins win over nothing: what the pod says of itself stays.
	grant := in.Devices[c.Name]
	plugin := make([]string, 0, len(grant.Envs))
	for name := range grant.Envs {
		plugin = append(plugin, name)
	}
	sort.Strings(plugin)
	for _, name := range plugin {
		b.set(name, grant.Envs[name])
	}
	out := make([]EnvVar, 0, len(b.order))
	for _, name := range b.order {
		out = append(out, EnvVar{name, b.values[name]})
	}
	return out, nil
}

type envBuilder struct {
	in       Input
	c        *v1.Container
	order    []string
	values   map[string]string
	services map[string]string
}

func (b *envBuilder) set(name, value string) {
	if _, ok := b.values[name]; !ok {
		b.order = append(b.order, name)
	}
	b.values[name] = value
}

// lookup sees variables set so far, then service variables.
func (b *envBuilder) lookup(name string) (string, bool) {
	if v, ok := b.values[name]; ok {
		return v, true
	}
	v, ok := b.services[name]
	return v, ok
}

func (b *envBuilder) from(f *v1.EnvFromSource) error {
	data := map[string]string{}
	switch {
	case f.ConfigMapRef != nil:
		o := b.in.Objects.ConfigMaps[f.ConfigMapRef.Name]
		if o == nil {
			if optional(f.ConfigMapRef.Optional) {
				return nil
			}
			return configErrorf("configmap %q not found", f.ConfigMapRef.Name)
		}
		data = o.Data
	case f.SecretRef != nil:
		o := b.in.Objects.Secrets[f.SecretRef.Name]
		if o == nil {
			if optional(f.SecretRef.Optional) {
				return nil
			}
			return configErrorf("secret %q not found", f.SecretRef.Name)
		}
		for k, v := range o.Data {
			data[k] = string(v)
		}
	}
	keys := make([]string, 0, len(data))
	for k := range data {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		b.set(f.Prefix+k, data[k])
	}
	return nil
}

func (b *envBuilder) variable(e *v1.EnvVar) error {
	if e.ValueFrom == nil {
		b.set(e.Name, expandVariables(e.Value, b.lookup))
		return nil
	}
	value, found, err := b.valueFrom(e.ValueFrom)
	if err != nil {
		return err
	}
	if found {
		b.set(e.Name, value)
	}
	return nil
}

func (b *envBuilder) valueFrom(s *v1.EnvVarSource) (value string, found bool, err error) {
	pod := b.in.Pod
	switch {
	case s.FieldRef != nil:
		value, err = envField(pod, b.facts(), s.FieldRef.FieldPath)
	case s.ResourceFieldRef != nil:
		value, err = ResourceField(pod, b.c.Name, s.ResourceFieldRef, b.in.Allocatable)
	case s.ConfigMapKeyRef != nil:
		return b.configMapKey(s.ConfigMapKeyRef)
	case s.SecretKeyRef != nil:
		return b.secretKey(s.SecretKeyRef)
	case s.FileKeyRef != nil:
		return b.fileKey(s.FileKeyRef)
	default:
		return "", false, nil
	}
	if err != nil {
		return "", false, configErrorf("%w", err)
	}
	return value, true, nil
}

// facts are the addresses as downward fields see them: on the node's network
// the pod's addresses are the node's.
func (b *envBuilder) facts() FieldFacts { return factsOf(b.in) }

// factsOf are the downward facts of a pod.
func factsOf(in Input) FieldFacts {
	f := FieldFacts{NodeName: in.NodeName, HostIPs: in.NodeIPs, PodIPs: in.PodIPs}
	if in.Pod.Spec.HostNetwork && len(f.PodIPs) == 0 {
		f.PodIPs = in.NodeIPs
	}
	return f
}

func (b *envBuilder) configMapKey(r *v1.ConfigMapKeySelector) (string, bool, error) {
	o := b.in.Objects.ConfigMaps[r.Name]
	if o == nil {
		if optional(r.Optional) {
			return "", false, nil
		}
		return "", false, configErrorf("configmap %q not found", r.Name)
	}
	v, ok := o.Data[r.Key]
	if !ok && !optional(r.Optional) {
		return "", false, configErrorf("couldn't find key %v in ConfigMap %v/%v", r.Key, b.in.Pod.Namespace, r.Name)
	}
	return v, ok, nil
}

func (b *envBuilder) secretKey(r *v1.SecretKeySelector) (string, bool, error) {
	o := b.in.Objects.Secrets[r.Name]
	if o == nil {
		if optional(r.Optional) {
			return "", false, nil
		}
		return "", false, configErrorf("secret %q not found", r.Name)
	}
	v, ok := o.Data[r.Key]
	if !ok && !optional(r.Optional) {
		return "", false, configErrorf("couldn't find key %v in Secret %v/%v", r.Key, b.in.Pod.Namespace, r.Name)
	}
	return string(v), ok, nil
}

func (b *envBuilder) fileKey(r *v1.FileKeySelector) (string, bool, error) {
	content, ok := b.in.EnvFiles[EnvFile{r.VolumeName, r.Path}]
	if !ok {
		if optional(r.Optional) {
			return "", false, nil
		}
		return "", false, configErrorf("environment file %q not found in volume %q", r.Path, r.VolumeName)
	}
	vars, err := parseEnvFile(content)
	if err != nil {
		return "", false, configErrorf("environment file %q in volume %q: %w", r.Path, r.VolumeName, err)
	}
	v, ok := vars[r.Key]
	if !ok && !optional(r.Optional) {
		return "", false, configErrorf("environment variable key %q not found in file %q", r.Key, r.Path)
	}
	return v, ok, nil
}

// parseEnvFile reads KEY='value' lines. Blank lines and comments are skipped;
// a value in single quotes may span lines and holds no escapes.
func parseEnvFile(content string) (map[string]string, error) {
	out := map[string]string{}
	sc := bufio.NewScanner(strings.NewReader(content))
	sc.Buffer(nil, 1<<20)
	for n := 1; sc.Scan(); n++ {
		line := strings.TrimSpace(sc.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok || key == "" || strings.ContainsAny(key, " \t") {
			return nil, fmt.Errorf("line %d is not of the form KEY='value'", n)
		}
		start := n
		if rest, quoted := strings.CutPrefix(value, "'"); quoted {
			for !strings.Contains(rest, "'") {
				if !sc.Scan() {
					return nil, fmt.Errorf("line %d opens a quote that never closes", start)
				}
				n++
				rest += "\n" + sc.Text()
			}
			v, after, _ := strings.Cut(rest, "'")
			if after = strings.TrimSpace(after); after != "" && !strings.HasPrefix(after, "#") {
				return nil, fmt.Errorf("line %d has text after the closing quote", n)
			}
			value = v
		}
		out[key] = value
	}
	return out, sc.Err()
}

func optional(b *bool) bool { return b != nil && *b }

// serviceEnv are the variables that describe services, in the pattern of
// Docker links.
func serviceEnv(in Input) map[string]string {
	links := in.Pod.Spec.EnableServiceLinks == nil || *in.Pod.Spec.EnableServiceLinks
	// The pod's own namespace wins over the master service of the same name.
	byName := map[string]*v1.Service{}
	for _, s := range in.Services {
		if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == v1.ClusterIPNone {
			continue
		}
		switch {
		case links && s.Namespace == in.Pod.Namespace:
			byName[s.Name] = s
		case s.Namespace == metav1Default && s.Name == masterService:
			if byName[s.Name] == nil {
				byName[s.Name] = s
			}
		}
	}
	out := map[string]string{}
	for _, s := range byName {
		addService(out, s)
	}
	return out
}

const (
	metav1Default = "default"
	masterService = "kubernetes"
)

func addService(out map[string]string, s *v1.Service) {
	if len(s.Spec.Ports) == 0 {
		return
	}
	prefix := envName(s.Name)
	ip := s.Spec.ClusterIP
	firstPort := s.Spec.Ports[0]
	out[prefix+"_SERVICE_HOST"] = ip
	out[prefix+"_SERVICE_PORT"] = strconv.Itoa(int(firstPort.Port))
	for _, p := range s.Spec.Ports {
		if p.Name != "" {
			out[prefix+"_SERVICE_PORT_"+envName(p.Name)] = strconv.Itoa(int(p.Port))
		}
	}
	for i, p := range s.Spec.Ports {
		proto := string(p.Protocol)
		if proto == "" {
			proto = string(v1.ProtocolTCP)
		}
		port := strconv.Itoa(int(p.Port))
		url := strings.ToLower(proto) + "://" + net.JoinHostPort(ip, port)
		if i == 0 {
			out[prefix+"_PORT"] = url
		}
		key := prefix + "_PORT_" + port + "_" + strings.ToUpper(proto)
		out[key] = url
		out[key+"_PROTO"] = strings.ToLower(proto)
		out[key+"_PORT"] = port
		out[key+"_ADDR"] = ip
	}
}

func envName(s string) string {
	return strings.ToUpper(strings.ReplaceAll(s, "-", "_"))
}
