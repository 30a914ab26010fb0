package container

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
)

// objects holds the ConfigMaps and Secrets of the pod's namespace by name. A
// name that was looked for and not found is present with a nil value.
type objects struct {
	ConfigMaps map[string]*v1.ConfigMap
	Secrets    map[string]*v1.Secret
}

// Getter fetches objects, usually from a cache kept by watches.
type Getter interface {
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// References are the names that the environment of containers refers to.
// Environment variables are read once per start of a container.
func References(containers ...*v1.Container) (configMaps, secrets []string) {
	seen := map[string]bool{}
	add := func(list *[]string, kind, name string) {
		if name != "" && !seen[kind+name] {
			seen[kind+name] = true
			*list = append(*list, name)
		}
	}
	for _, c := range containers {
		for _, f := range c.EnvFrom {
			if f.ConfigMapRef != nil {
				add(&configMaps, "c/", f.ConfigMapRef.Name)
			}
			if f.SecretRef != nil {
				add(&secrets, "s/", f.SecretRef.Name)
			}
		}
		for _, e := range c.Env {
			if e.ValueFrom == nil {
				continue
			}
			if r := e.ValueFrom.ConfigMapKeyRef; r != nil {
				add(&configMaps, "c/", r.Name)
			}
			if r := e.ValueFrom.SecretKeyRef; r != nil {
				add(&secrets, "s/", r.Name)
			}
		}
	}
	return configMaps, secrets
}

// Resolve fetches what the environment of c needs. Objects that do not exist
// are recorded as such: whether that is an error depends on who refers to them.
func Resolve(ctx context.Context, get Getter, pod *v1.Pod, c *v1.Container) (objects, error) {
	out := objects{ConfigMaps: map[string]*v1.ConfigMap{}, Secrets: map[string]*v1.Secret{}}
	configMaps, secrets := References(c)
	for _, name := range configMaps {
		o, err := get.ConfigMap(ctx, pod.Namespace, name)
		if err != nil && !errors.IsNotFound(err) {
			return out, configErrorf("%w", err)
		}
		if err != nil {
			o = nil
		}
		out.ConfigMaps[name] = o
	}
	for _, name := range secrets {
		o, err := get.Secret(ctx, pod.Namespace, name)
		if err != nil && !errors.IsNotFound(err) {
			return out, configErrorf("%w", err)
		}
		if err != nil {
			o = nil
		}
		out.Secrets[name] = o
	}
	return out, nil
}
