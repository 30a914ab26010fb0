package validate

import (
	"fmt"
	"path"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const tooManyVolumeTypes = "may not specify more than 1 volume type"

// podVolumes checks a pod's volumes and returns those with a good name, for
// the mounts to refer to.
func podVolumes(p *field.Path, list []v1.Volume, pod bool) (map[string]*v1.VolumeSource, errs) {
	var all errs
	found := map[string]*v1.VolumeSource{}
	for i := range list {
		at, v := p.Index(i), &list[i]
		all = append(all, volumeSource(at, &v.VolumeSource, pod)...)
		bad := named(at.Child("name"), v.Name, validation.IsDNS1123Label)
		if found[v.Name] != nil {
			bad = append(bad, field.Duplicate(at.Child("name"), v.Name))
		}
		if all = append(all, bad...); len(bad) == 0 {
			found[v.Name] = &v.VolumeSource
		}
	}
	return found, all
}

func volumeSource(p *field.Path, s *v1.VolumeSource, pod bool) errs {
	members := []given{
		{"emptyDir", s.EmptyDir != nil}, {"hostPath", s.HostPath != nil}, {"gitRepo", s.GitRepo != nil},
		{"gcePersistentDisk", s.GCEPersistentDisk != nil}, {"awsElasticBlockStore", s.AWSElasticBlockStore != nil},
		{"secret", s.Secret != nil}, {"nfs", s.NFS != nil}, {"iscsi", s.ISCSI != nil}, {"glusterfs", s.Glusterfs != nil},
		{"flocker", s.Flocker != nil}, {"persistentVolumeClaim", s.PersistentVolumeClaim != nil}, {"rbd", s.RBD != nil},
		{"cinder", s.Cinder != nil}, {"cephfs", s.CephFS != nil}, {"quobyte", s.Quobyte != nil}, {"downwardAPI", s.DownwardAPI != nil},
		{"fc", s.FC != nil}, {"flexVolume", s.FlexVolume != nil}, {"configMap", s.ConfigMap != nil}, {"azureFile", s.AzureFile != nil},
		{"vsphereVolume", s.VsphereVolume != nil}, {"photonPersistentDisk", s.PhotonPersistentDisk != nil},
		{"portworxVolume", s.PortworxVolume != nil}, {"azureDisk", s.AzureDisk != nil}, {"storageos", s.StorageOS != nil},
		{"projected", s.Projected != nil}, {"scaleIO", s.ScaleIO != nil}, {"csi", s.CSI != nil}, {"ephemeral", s.Ephemeral != nil},
		{"image", s.Image != nil},
	}
	all := exactlyOne(p, tooManyVolumeTypes, "must specify a volume type", members)
	return append(all, firstOnly(p, members, append(localSource(p, s, pod), networkSource(p, s)...))...)
}

// localSource checks the volumes that the node makes by itself.
func localSource(p *field.Path, s *v1.VolumeSource, pod bool) errs {
	var all errs
	if d := s.EmptyDir; d != nil && d.SizeLimit != nil && d.SizeLimit.Sign() < 0 {
		all = append(all, field.Forbidden(p.Child("emptyDir", "sizeLimit"), "SizeLimit field must be a valid resource quantity"))
	}
	if s.HostPath != nil {
		all = append(all, hostPath(p.Child("hostPath"), s.HostPath)...)
	}
	if g := s.GitRepo; g != nil {
		all = append(all, present(p.Child("gitRepo", "repository"), g.Repository)...)
		all = append(all, localPath(p.Child("gitRepo", "directory"), g.Directory)...)
	}
	if secret := s.Secret; secret != nil {
		at := p.Child("secret")
		all = append(all, present(at.Child("secretName"), secret.SecretName)...)
		all = append(all, fileMode(at.Child("defaultMode"), secret.DefaultMode)...)
		all = append(all, keys(at.Child("items"), secret.Items)...)
	}
	if c := s.ConfigMap; c != nil {
		at := p.Child("configMap")
		all = append(all, present(at.Child("name"), c.Name)...)
		all = append(all, fileMode(at.Child("defaultMode"), c.DefaultMode)...)
		all = append(all, keys(at.Child("items"), c.Items)...)
	}
	if d := s.DownwardAPI; d != nil {
		at := p.Child("downwardAPI")
		all = append(all, fileMode(at.Child("defaultMode"), d.DefaultMode)...)
		all = append(all, downwardFiles(at, d.Items)...)
	}
	if s.Projected != nil {
		all = append(all, projected(p.Child("projected"), s.Projected)...)
	}
	if i := s.Image; i != nil {
		if pod || i.Reference != "" {
			all = append(all, present(p.Child("image", "reference"), i.Reference)...)
		}
		if i.PullPolicy != "" {
			all = append(all, oneOf(p.Child("image", "pullPolicy"), i.PullPolicy, v1.PullAlways, v1.PullIfNotPresent, v1.PullNever)...)
		}
	}
	return all
}

// networkSource checks the volumes that come from elsewhere. Drivers judge most
// of their fields themselves; here stand those without which nothing works.
func networkSource(p *field.Path, s *v1.VolumeSource) errs {
	var all errs
	if c := s.PersistentVolumeClaim; c != nil {
		all = append(all, present(p.Child("persistentVolumeClaim", "claimName"), c.ClaimName)...)
	}
	if s.NFS != nil {
		all = append(all, nfs(p.Child("nfs"), s.NFS)...)
	}
	if c := s.CSI; c != nil {
		all = append(all, csiDriverName(p.Child("csi", "driver"), c.Driver)...)
		if c.NodePublishSecretRef != nil {
			all = append(all, reference(p.Child("csi", "nodePublishSecretRef"), *c.NodePublishSecretRef)...)
		}
	}
	if e := s.Ephemeral; e != nil {
		at := p.Child("ephemeral", "volumeClaimTemplate")
		if e.VolumeClaimTemplate == nil {
			all = append(all, field.Required(at, ""))
		} else {
			all = append(all, templateMeta(at.Child("metadata"), &e.VolumeClaimTemplate.ObjectMeta)...)
			all = append(all, claimSpec(at.Child("spec"), &e.VolumeClaimTemplate.Spec)...)
		}
	}
	if d := s.GCEPersistentDisk; d != nil {
		all = append(all, gceDisk(p.Child("persistentDisk"), d)...)
	}
	if d := s.AWSElasticBlockStore; d != nil {
		all = append(all, awsDisk(p.Child("awsElasticBlockStore"), d)...)
	}
	return append(all, storageSource(p, s)...)
}

// storageSource checks the sources of storage systems that have no driver here.
func storageSource(p *field.Path, s *v1.VolumeSource) errs {
	var all errs
	if i := s.ISCSI; i != nil {
		chap := i.DiscoveryCHAPAuth || i.SessionCHAPAuth
		all = append(all, iscsi(p.Child("iscsi"), i.TargetPortal, i.IQN, i.Lun, i.InitiatorName, chap && i.SecretRef == nil)...)
		if i.SecretRef != nil {
			all = append(all, present(p.Child("iscsi", "secretRef", "name"), i.SecretRef.Name)...)
		}
	}
	if f := s.FC; f != nil {
		all = append(all, fibreChannel(p.Child("fc"), f)...)
	}
	if g := s.Glusterfs; g != nil {
		all = append(all, present(p.Child("glusterfs", "endpoints"), g.EndpointsName)...)
		all = append(all, present(p.Child("glusterfs", "path"), g.Path)...)
	}
	if f := s.Flocker; f != nil {
		all = append(all, flocker(p.Child("flocker"), f)...)
	}
	if q := s.Quobyte; q != nil {
		all = append(all, quobyte(p.Child("quobyte"), q)...)
	}
	if i := s.ScaleIO; i != nil {
		all = append(all, present(p.Child("scaleIO", "gateway"), i.Gateway)...)
		all = append(all, present(p.Child("scaleIO", "system"), i.System)...)
		all = append(all, present(p.Child("scaleIO", "volumeName"), i.VolumeName)...)
	}
	if d := s.AzureDisk; d != nil {
		all = append(all, azureDisk(p.Child("azureDisk"), d)...)
	}
	if d := s.PhotonPersistentDisk; d != nil {
		all = append(all, present(p.Child("photonPersistentDisk", "pdID"), d.PdID)...)
	}
	if d := s.PortworxVolume; d != nil {
		all = append(all, present(p.Child("portworxVolume", "volumeID"), d.VolumeID)...)
	}
	if c := s.CephFS; c != nil && len(c.Monitors) == 0 {
		all = append(all, field.Required(p.Child("cephfs", "monitors"), ""))
	}
	if r := s.RBD; r != nil {
		if len(r.CephMonitors) == 0 {
			all = append(all, field.Required(p.Child("rbd", "monitors"), ""))
		}
		all = append(all, present(p.Child("rbd", "image"), r.RBDImage)...)
	}
	if c := s.Cinder; c != nil {
		all = append(all, present(p.Child("cinder", "volumeID"), c.VolumeID)...)
		if c.SecretRef != nil {
			all = append(all, present(p.Child("cinder", "secretRef", "name"), c.SecretRef.Name)...)
		}
	}
	if f := s.FlexVolume; f != nil {
		all = append(all, flexVolume(p.Child("flexVolume"), f.Driver, f.Options)...)
	}
	if a := s.AzureFile; a != nil {
		all = append(all, present(p.Child("azureFile", "secretName"), a.SecretName)...)
		all = append(all, present(p.Child("azureFile", "shareName"), a.ShareName)...)
	}
	if v := s.VsphereVolume; v != nil {
		all = append(all, present(p.Child("vsphereVolume", "volumePath"), v.VolumePath)...)
	}
	return all
}

func hostPath(p *field.Path, h *v1.HostPathVolumeSource) errs {
	if h.Path == "" {
		return errs{field.Required(p.Child("path"), "")}
	}
	all := noBacksteps(p.Child("path"), h.Path)
	return append(all, oneOfIfSet(p.Child("type"), h.Type, v1.HostPathUnset, v1.HostPathDirectoryOrCreate, v1.HostPathDirectory,
		v1.HostPathFileOrCreate, v1.HostPathFile, v1.HostPathSocket, v1.HostPathCharDev, v1.HostPathBlockDev)...)
}

func nfs(p *field.Path, n *v1.NFSVolumeSource) errs {
	all := present(p.Child("server"), n.Server)
	all = append(all, present(p.Child("path"), n.Path)...)
	if n.Path != "" && !path.IsAbs(n.Path) {
		all = append(all, field.Invalid(p.Child("path"), n.Path, "must be an absolute path"))
	}
	return all
}

// keys checks which keys of a secret or config map become which files.
func keys(p *field.Path, items []v1.KeyToPath) errs {
	var all errs
	for i, item := range items {
		at := p.Index(i)
		all = append(all, present(at.Child("key"), item.Key)...)
		if all = append(all, present(at.Child("path"), item.Path)...); item.Path != "" {
			all = append(all, localFile(at.Child("path"), item.Path)...)
		}
		all = append(all, fileMode(at.Child("mode"), item.Mode)...)
	}
	return all
}

func downwardFiles(p *field.Path, files []v1.DownwardAPIVolumeFile) errs {
	var all errs
	for i := range files {
		f := &files[i]
		if all = append(all, present(p.Child("path"), f.Path)...); f.Path != "" {
			all = append(all, localFile(p.Child("path"), f.Path)...)
		}
		switch {
		case f.FieldRef != nil && f.ResourceFieldRef != nil:
			all = append(all, field.Invalid(p, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously"))
		case f.FieldRef != nil:
			all = append(all, fieldRef(p.Child("fieldRef"), f.FieldRef, fileFields)...)
		case f.ResourceFieldRef != nil:
			all = append(all, resourceFieldRef(p.Child("resourceFieldRef"), f.ResourceFieldRef, true)...)
		default:
			all = append(all, field.Required(p, "one of fieldRef and resourceFieldRef is required"))
		}
		all = append(all, fileMode(p.Child("mode"), f.Mode)...)
	}
	return all
}

// Lifetimes of a projected token, in seconds.
const (
	minTokenLifetime int64 = 10 * 60
	maxTokenLifetime int64 = 1 << 32
)

func projected(p *field.Path, v *v1.ProjectedVolumeSource) errs {
	all := fileMode(p.Child("defaultMode"), v.DefaultMode)
	files := map[string]bool{}
	place := func(at *field.Path, file string) {
		if file != "" && files[file] {
			all = append(all, field.Invalid(at, file, "conflicting duplicate paths"))
		}
		files[file] = true
	}
	for i := range v.Sources {
		at, s := p.Child("sources").Index(i), &v.Sources[i]
		all = append(all, exactlyOne(at, tooManyVolumeTypes, "must specify a volume type", []given{
			{"secret", s.Secret != nil}, {"configMap", s.ConfigMap != nil}, {"downwardAPI", s.DownwardAPI != nil},
			{"serviceAccountToken", s.ServiceAccountToken != nil}, {"clusterTrustBundle", s.ClusterTrustBundle != nil},
			{"podCertificate", s.PodCertificate != nil},
		})...)
		if s.Secret != nil {
			all = append(all, present(at.Child("secret", "name"), s.Secret.Name)...)
			all = append(all, keys(at.Child("secret", "items"), s.Secret.Items)...)
			for _, item := range s.Secret.Items {
				place(at, item.Path)
			}
		}
		if s.ConfigMap != nil {
			all = append(all, present(at.Child("configMap", "name"), s.ConfigMap.Name)...)
			all = append(all, keys(at.Child("configMap", "items"), s.ConfigMap.Items)...)
			for _, item := range s.ConfigMap.Items {
				place(at, item.Path)
			}
		}
		if s.DownwardAPI != nil {
			all = append(all, downwardFiles(at.Child("downwardAPI"), s.DownwardAPI.Items)...)
			for _, item := range s.DownwardAPI.Items {
				place(at, item.Path)
			}
		}
		if t := s.ServiceAccountToken; t != nil {
			all = append(all, tokenProjection(at.Child("serviceAccountToken"), t)...)
			place(at, t.Path)
		}
		if b := s.ClusterTrustBundle; b != nil {
			all = append(all, trustBundle(at.Child("clusterTrustBundle"), b)...)
			place(at, b.Path)
		}
		if c := s.PodCertificate; c != nil {
			all = append(all, podCertificate(at.Child("podCertificate"), c)...)
			for _, path := range []string{c.CredentialBundlePath, c.KeyPath, c.CertificateChainPath} {
				if path != "" {
					place(at, path)
				}
			}
		}
	}
	return all
}

func podCertificate(p *field.Path, c *v1.PodCertificateProjection) errs {
	all := signerName(p.Child("signerName"), c.SignerName)
	all = append(all, oneOf(p.Child("keyType"), c.KeyType, PodKeyTypes...)...)
	if seconds := c.MaxExpirationSeconds; seconds != nil {
		at, most := p.Child("maxExpirationSeconds"), mostSeconds(c.SignerName)
		if *seconds < minPodCertificateSeconds {
			all = append(all, field.Invalid(at, *seconds, fmt.Sprintf("if provided, maxExpirationSeconds must be >= %d",
				minPodCertificateSeconds)))
		}
		if *seconds > most {
			all = append(all, field.Invalid(at, *seconds, fmt.Sprintf("if provided, maxExpirationSeconds must be <= %d", most)))
		}
	}
	if c.CredentialBundlePath == "" && c.KeyPath == "" && c.CertificateChainPath == "" {
		all = append(all, field.Required(p, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath"))
	}
	for _, file := range []struct{ field, path string }{
		{"credentialBundlePath", c.CredentialBundlePath}, {"keyPath", c.KeyPath}, {"certificateChainPath", c.CertificateChainPath},
	} {
		if file.path != "" {
			all = append(all, localFile(p.Child(file.field), file.path)...)
		}
	}
	return append(all, userAnnotations(p.Child("userAnnotations"), c.UserAnnotations)...)
}

func tokenProjection(p *field.Path, t *v1.ServiceAccountTokenProjection) errs {
	var all errs
	if seconds := deref(t.ExpirationSeconds); seconds < minTokenLifetime {
		all = append(all, field.Invalid(p.Child("expirationSeconds"), seconds, "may not specify a duration less than 10 minutes"))
	} else if seconds > maxTokenLifetime {
		all = append(all, field.Invalid(p.Child("expirationSeconds"), seconds, "may not specify a duration larger than 2^32 seconds"))
	}
	if t.Path == "" {
		return append(all, field.Required(p.Child("path"), ""))
	}
	return append(all, localFile(p.Child("path"), t.Path)...)
}

func trustBundle(p *field.Path, b *v1.ClusterTrustBundleProjection) errs {
	var all errs
	switch {
	case b.Name != nil && b.SignerName != nil:
		all = append(all, field.Invalid(p, "", "only one of name and signerName may be used"))
	case b.Name != nil:
		at := p.Child("name")
		if *b.Name == "" {
			all = append(all, field.Required(at, "must be a valid object name"))
		}
		for _, message := range bundleName(*b.Name, signerOfBundle(*b.Name)) {
			all = append(all, field.Invalid(at, *b.Name, fmt.Sprintf("not a valid clustertrustbundlename: %v", message)))
		}
		if b.LabelSelector != nil {
			all = append(all, field.Invalid(p.Child("labelSelector"), b.LabelSelector, "labelSelector must be unset if name is specified"))
		}
	case b.SignerName != nil:
		all = append(all, signerName(p.Child("signerName"), *b.SignerName)...)
		all = append(all, selector(p.Child("labelSelector"), b.LabelSelector)...)
	default:
		all = append(all, field.Required(p, "either name or signerName must be specified"))
	}
	if b.Path == "" {
		return append(all, field.Required(p.Child("path"), ""))
	}
	return append(all, localFile(p.Child("path"), b.Path)...)
}
