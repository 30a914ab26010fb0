package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/internal/agent/container"
)

const defaultMode = 0o644

// collector gathers the contents of a volume. The errors it returns are those
// of the API's contract; they end in an event of the pod.
type collector struct {
	pod    *v1.Pod
	volume string
	// dir is where the volume is, to find the tokens it holds.
	dir     string
	get     func(ctx context.Context, k key) (*content, error)
	tokens  *tokens
	bundles *bundles
	certs   *certs
	// allocatable bounds containers without limits in resource fields.
	allocatable v1.ResourceList
	facts       container.FieldFacts

	// due is when the contents should be collected again; zero for never.
	due time.Time
	// degraded is an error that did not stop the collection.
	degraded error
}

// isPayload says whether a volume's contents are written by the agent.
func isPayload(v *v1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
}

// collect is the wanted contents of a volume.
func (c *collector) collect(ctx context.Context, v *v1.Volume) (payload, error) {
	out := payload{}
	var err error
	switch {
	case v.ConfigMap != nil:
		s := v.ConfigMap
		err = c.configMap(ctx, out, s.Name, s.Items, s.DefaultMode, s.Optional)
	case v.Secret != nil:
		s := v.Secret
		err = c.secret(ctx, out, s.SecretName, s.Items, s.DefaultMode, s.Optional)
	case v.DownwardAPI != nil:
		err = c.downward(out, v.DownwardAPI.Items, v.DownwardAPI.DefaultMode)
	case v.Projected != nil:
		err = c.projected(ctx, out, v.Projected)
	}
	if err == nil {
		err = checkPayload(out)
	}
	return out, err
}

// referred are the objects that a volume's contents come from.
func referred(pod *v1.Pod, v *v1.Volume) []key {
	var out []key
	add := func(kd kind, name string) {
		if name != "" {
			out = append(out, key{kd, pod.Namespace, name})
		}
	}
	switch {
	case v.ConfigMap != nil:
		add(configMaps, v.ConfigMap.Name)
	case v.Secret != nil:
		add(secrets, v.Secret.SecretName)
	case v.Projected != nil:
		for _, s := range v.Projected.Sources {
			if s.ConfigMap != nil {
				add(configMaps, s.ConfigMap.Name)
			}
			if s.Secret != nil {
				add(secrets, s.Secret.Name)
			}
		}
	case v.CSI != nil && v.CSI.NodePublishSecretRef != nil:
		add(secrets, v.CSI.NodePublishSecretRef.Name)
	}
	return out
}

// keysOf are all objects a pod refers to: in volumes, environments and pull
// secrets.
func keysOf(pod *v1.Pod) []key {
	var out []key
	for i := range pod.Spec.Volumes {
		out = append(out, referred(pod, &pod.Spec.Volumes[i])...)
	}
	cms, secs := container.References(container.All(pod)...)
	for _, name := range cms {
		out = append(out, key{configMaps, pod.Namespace, name})
	}
	for _, name := range secs {
		out = append(out, key{secrets, pod.Namespace, name})
	}
	for _, r := range pod.Spec.ImagePullSecrets {
		if r.Name != "" {
			out = append(out, key{secrets, pod.Namespace, r.Name})
		}
	}
	return out
}

func (c *collector) configMap(ctx context.Context, out payload, name string, items []v1.KeyToPath, mode *int32, optional *bool) error {
	o, err := c.get(ctx, key{configMaps, c.pod.Namespace, name})
	if err != nil {
		if isOptional(optional) && apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	data := make(map[string][]byte, len(o.configMap.Data)+len(o.configMap.BinaryData))
	for k, v := range o.configMap.Data {
		data[k] = []byte(v)
	}
	for k, v := range o.configMap.BinaryData {
		data[k] = v
	}
	return project(out, data, items, mode, optional, "configmap references non-existent config key: %s")
}

func (c *collector) secret(ctx context.Context, out payload, name string, items []v1.KeyToPath, mode *int32, optional *bool) error {
	o, err := c.get(ctx, key{secrets, c.pod.Namespace, name})
	if err != nil {
		if isOptional(optional) && apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	return project(out, o.secret.Data, items, mode, optional, "references non-existent secret key: %s")
}

func isOptional(b *bool) bool { return b != nil && *b }

// project picks keys of an object. Without items every key is a file.
func project(out payload, data map[string][]byte, items []v1.KeyToPath, mode *int32, optional *bool, missing string) error {
	if len(items) == 0 {
		for k, v := range data {
			out[k] = file{data: v, mode: modeOr(nil, mode)}
		}
		return nil
	}
	for _, it := range items {
		v, ok := data[it.Key]
		if !ok {
			if isOptional(optional) {
				continue
			}
			return fmt.Errorf(missing, it.Key)
		}
		out[filepath.Clean(it.Path)] = file{data: v, mode: modeOr(it.Mode, mode)}
	}
	return nil
}

func modeOr(own, def *int32) fs.FileMode {
	switch {
	case own != nil:
		return fs.FileMode(*own) & fs.ModePerm
	case def != nil:
		return fs.FileMode(*def) & fs.ModePerm
	}
	return defaultMode
}

func (c *collector) downward(out payload, items []v1.DownwardAPIVolumeFile, mode *int32) error {
	var errs []error
	for _, it := range items {
		var value string
		var err error
		switch {
		case it.FieldRef != nil:
			value, err = container.VolumeField(c.pod, it.FieldRef.FieldPath)
		case it.ResourceFieldRef != nil:
			value, err = container.ResourceField(c.pod, "", it.ResourceFieldRef, c.allocatable)
		default:
			err = fmt.Errorf("downward API item %q: one of fieldRef and resourceFieldRef is required", it.Path)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out[filepath.Clean(it.Path)] = file{data: []byte(value), mode: modeOr(it.Mode, mode)}
	}
	return errors.Join(errs...)
}

func (c *collector) projected(ctx context.Context, out payload, p *v1.ProjectedVolumeSource) error {
	var errs []error
	for i := range p.Sources {
		s := &p.Sources[i]
		var err error
		switch {
		case s.ConfigMap != nil:
			err = c.configMap(ctx, out, s.ConfigMap.Name, s.ConfigMap.Items, p.DefaultMode, s.ConfigMap.Optional)
		case s.Secret != nil:
			err = c.secret(ctx, out, s.Secret.Name, s.Secret.Items, p.DefaultMode, s.Secret.Optional)
		case s.DownwardAPI != nil:
			err = c.downward(out, s.DownwardAPI.Items, p.DefaultMode)
		case s.ServiceAccountToken != nil:
			err = c.token(ctx, out, s.ServiceAccountToken, p.DefaultMode)
		case s.ClusterTrustBundle != nil:
			err = c.trustBundle(ctx, out, s.ClusterTrustBundle, p.DefaultMode)
		case s.PodCertificate != nil:
			err = c.podCertificate(ctx, out, i, s.PodCertificate, p.DefaultMode)
		default:
			err = fmt.Errorf("projected source %d names no kind that this node knows", i)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (c *collector) token(ctx context.Context, out payload, p *v1.ServiceAccountTokenProjection, mode *int32) error {
	path := filepath.Clean(p.Path)
	var present []byte
	if c.dir != "" {
		present, _ = os.ReadFile(filepath.Join(c.dir, dataDir, path))
	}
	value, due, err := c.tokens.get(ctx, c.pod, p, string(present))
	if value == "" {
		return err
	}
	if err != nil {
		c.degraded = fmt.Errorf("renewing token: %w", err)
	}
	if c.due.IsZero() || due.Before(c.due) {
		c.due = due
	}
	out[path] = c.credentialFile([]byte(value), mode)
	return nil
}

// credentialFile is a file that no one but the pod's own user or group may
// read.
func (c *collector) credentialFile(data []byte, mode *int32) file {
	f := file{data: data, mode: modeOr(nil, mode), uid: commonUser(c.pod)}
	group := c.pod.Spec.SecurityContext != nil && c.pod.Spec.SecurityContext.FSGroup != nil
	if f.uid != nil || group {
		f.mode = 0o600 // the volume's group gets its rights with the volume
	}
	return f
}

// commonUser is the user all containers run as, nil when they differ or one
// leaves it to its image.
func commonUser(pod *v1.Pod) *int64 {
	var def, common *int64
	if pod.Spec.SecurityContext != nil {
		def = pod.Spec.SecurityContext.RunAsUser
	}
	for _, c := range container.All(pod) {
		user := def
		if c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil {
			user = c.SecurityContext.RunAsUser
		}
		if user == nil || common != nil && *common != *user {
			return nil
		}
		common = user
	}
	return common
}
