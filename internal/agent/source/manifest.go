package source

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// origin is where a manifest was read.
type origin struct {
	node string
	kind string // "file" or "http"
	// place is the path or URL.
	place string
	seen  time.Time
	// changed is when the manifest was last changed; zero if that is not known.
	changed time.Time
	// ids knows the UIDs of pods that name none; nil makes each from its manifest.
	ids *identities
}

// key names the manifest of a pod: a file holds one, a URL may have several.
func (o *origin) key(p *v1.Pod) string {
	if o.kind == "file" {
		return "file:" + o.place
	}
	return o.kind + ":" + o.place + "#" + o.name(p).String()
}

// name is the name under which a pod that was read here runs.
func (o *origin) name(p *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: cmp.Or(p.Namespace, metav1.NamespaceDefault), Name: p.Name + "-" + strings.ToLower(o.node)}
}

// parse reads a Pod, or where lists are allowed also a PodList, and completes
// each pod as the API server would.
func parse(data []byte, from *origin, lists bool) ([]*v1.Pod, error) {
	js, err := yaml.YAMLToJSON(data)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", from.place, err)
	}
	var tm metav1.TypeMeta
	if err := json.Unmarshal(js, &tm); err != nil {
		return nil, fmt.Errorf("reading the kind of %s: %w", from.place, err)
	}
	var pods []*v1.Pod
	var manifests []any
	var whole map[string]any
	if err := json.Unmarshal(js, &whole); err != nil {
		return nil, fmt.Errorf("reading %s: %w", from.place, err)
	}
	switch {
	case tm.APIVersion == "v1" && tm.Kind == "Pod":
		var p v1.Pod
		if err := strict(js, &p); err != nil {
			return nil, fmt.Errorf("reading pod of %s: %w", from.place, err)
		}
		pods, manifests = append(pods, &p), append(manifests, whole)
	case lists && tm.APIVersion == "v1" && (tm.Kind == "PodList" || tm.Kind == "List"):
		var l v1.PodList
		if err := strict(js, &l); err != nil {
			return nil, fmt.Errorf("reading pods of %s: %w", from.place, err)
		}
		for i := range l.Items {
			pods = append(pods, &l.Items[i])
		}
		manifests, _ = whole["items"].([]any)
	default:
		return nil, fmt.Errorf("reading %s: it holds %q of %q, allowed is a Pod of v1", from.place, tm.Kind, tm.APIVersion)
	}
	var errs []error
	out := pods[:0]
	for i, p := range pods {
		if err := complete(p, from, manifests[i]); err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, p)
	}
	return out, errors.Join(errs...)
}

func strict(js []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(js))
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more than one object")
	}
	return nil
}

// documents splits a manifest file; only one object per file is run.
func documents(data []byte) (int, error) {
	r := utilyaml.NewYAMLReader(newBufioReader(data))
	n := 0
	for {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if len(bytes.TrimSpace(doc)) > 0 {
			n++
		}
	}
}

// hashed is the UID that a manifest makes at this place.
func hashed(p *v1.Pod, from *origin) (types.UID, error) {
	h := fnv.New128a()
	b, err := json.Marshal(p)
	if err != nil {
		return "", fmt.Errorf("hashing the pod of %s: %w", from.place, err)
	}
	_, _ = h.Write(b)
	if from.kind == "file" {
		fmt.Fprintf(h, "host:%sfile:%s", from.node, from.place)
	} else {
		fmt.Fprintf(h, "url:%s", from.place)
	}
	return types.UID(hex.EncodeToString(h.Sum(nil))), nil
}

// identify gives a pod that names no UID the one it has here.
func identify(p *v1.Pod, from *origin, manifest any) error {
	if p.UID != "" {
		return nil
	}
	var err error
	if from.ids == nil {
		p.UID, err = hashed(p, from)
		return err
	}
	digest, err := manifestDigest(manifest, from.node)
	if err != nil {
		return fmt.Errorf("reading the pod of %s: %w", from.place, err)
	}
	p.UID, err = from.ids.of(p, from, digest)
	return err
}

// complete gives a static pod its identity and defaults and checks it.
func complete(p *v1.Pod, from *origin, manifest any) error {
	if err := identify(p, from, manifest); err != nil {
		return err
	}
	if p.Namespace == "" {
		p.Namespace = metav1.NamespaceDefault
	}
	if p.Name != "" {
		p.Name += "-" + strings.ToLower(from.node)
	}
	p.Spec.NodeName = from.node
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[AnnotationHash] = string(p.UID)
	p.Annotations[AnnotationSource] = from.kind
	p.Annotations[AnnotationSeen] = from.seen.Format(time.RFC3339Nano)
	if from.kind == "file" {
		p.Spec.Tolerations = append(p.Spec.Tolerations, v1.Toleration{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute})
	}
	p.Status = v1.PodStatus{Phase: v1.PodPending}
	setDefaults(&p.Spec)
	if err := check(p); err != nil {
		return fmt.Errorf("checking the pod of %s: %w", from.place, err)
	}
	return nil
}

// check refuses what no node could run, and what a static pod must not use.
func check(p *v1.Pod) error {
	if errs := utilvalidation.IsDNS1123Subdomain(p.Name); len(errs) > 0 {
		return fmt.Errorf("metadata.name %q: %s", p.Name, strings.Join(errs, "; "))
	}
	if errs := utilvalidation.IsDNS1123Label(p.Namespace); len(errs) > 0 {
		return fmt.Errorf("metadata.namespace %q: %s", p.Namespace, strings.Join(errs, "; "))
	}
	if len(p.Spec.Containers) == 0 {
		return errors.New("spec.containers: at least one is required")
	}
	if len(p.Spec.EphemeralContainers) > 0 {
		return errors.New("spec.ephemeralContainers: not allowed in static pods")
	}
	if err := refersToAPI(p); err != nil {
		return err
	}
	volumes := map[string]bool{}
	for _, v := range p.Spec.Volumes {
		if volumes[v.Name] {
			return fmt.Errorf("spec.volumes: %q is there twice", v.Name)
		}
		volumes[v.Name] = true
	}
	names := map[string]bool{}
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for _, c := range list {
			if errs := utilvalidation.IsDNS1123Label(c.Name); len(errs) > 0 {
				return fmt.Errorf("name of container %q: %s", c.Name, strings.Join(errs, "; "))
			}
			if names[c.Name] {
				return fmt.Errorf("container %q is there twice", c.Name)
			}
			names[c.Name] = true
			if c.Image == "" {
				return fmt.Errorf("image of container %q is required", c.Name)
			}
			for _, m := range c.VolumeMounts {
				if !volumes[m.Name] {
					return fmt.Errorf("container %q mounts volume %q, which spec.volumes does not have", c.Name, m.Name)
				}
			}
		}
	}
	return nil
}

// refersToAPI refuses references to API objects: a static pod runs without an
// API.
func refersToAPI(p *v1.Pod) error {
	no := func(what string) error { return errors.New("static pods may not reference " + what) }
	if p.Spec.ServiceAccountName != "" {
		return no("serviceaccounts")
	}
	if len(p.Spec.ImagePullSecrets) > 0 {
		return no("secrets")
	}
	if len(p.Spec.ResourceClaims) > 0 {
		return no("resourceclaims")
	}
	for _, v := range p.Spec.Volumes {
		switch {
		case v.Secret != nil:
			return no("secrets")
		case v.ConfigMap != nil:
			return no("configmaps")
		case v.PersistentVolumeClaim != nil, v.Ephemeral != nil:
			return no("persistentvolumeclaims")
		case v.CSI != nil:
			return no("csidrivers (volume " + v.Name + ")") // the driver's object decides what the driver learns
		case v.Glusterfs != nil:
			return no("endpoints (volume " + v.Name + ")")
		case v.AzureFile != nil, v.CephFS != nil && v.CephFS.SecretRef != nil, v.RBD != nil && v.RBD.SecretRef != nil,
			v.ISCSI != nil && v.ISCSI.SecretRef != nil, v.FlexVolume != nil && v.FlexVolume.SecretRef != nil,
			v.ScaleIO != nil, v.StorageOS != nil && v.StorageOS.SecretRef != nil:
			return no("secrets")
		}
		if v.Projected == nil {
			continue
		}
		for _, src := range v.Projected.Sources {
			switch {
			case src.Secret != nil:
				return no("secrets")
			case src.ConfigMap != nil:
				return no("configmaps")
			case src.ServiceAccountToken != nil:
				return no("serviceaccounts")
			case src.ClusterTrustBundle != nil:
				return no("clustertrustbundles")
			case src.PodCertificate != nil:
				return no("podcertificates")
			}
		}
	}
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for _, c := range list {
			for _, e := range c.EnvFrom {
				if e.SecretRef != nil {
					return no("secrets")
				}
				if e.ConfigMapRef != nil {
					return no("configmaps")
				}
			}
			for _, e := range c.Env {
				if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
					return no("secrets")
				}
				if e.ValueFrom != nil && e.ValueFrom.ConfigMapKeyRef != nil {
					return no("configmaps")
				}
			}
		}
	}
	return nil
}
