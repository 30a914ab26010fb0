package validate

import (
	"regexp"
	"strings"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// This file checks the volumes of plugins that a driver of CSI has taken over.
// Their fields stay in the API, and an object that no driver could read is
// refused when it is written.

func gceDisk(p *field.Path, d *v1.GCEPersistentDiskVolumeSource) errs {
	return append(present(p.Child("pdName"), d.PDName), partition(p, d.Partition)...)
}

func awsDisk(p *field.Path, d *v1.AWSElasticBlockStoreVolumeSource) errs {
	return append(present(p.Child("volumeID"), d.VolumeID), partition(p, d.Partition)...)
}

func partition(p *field.Path, n int32) errs {
	if n < 0 || n > 255 {
		return errs{field.Invalid(p.Child("partition"), n, "must be between 0 and 255, inclusive")}
	}
	return nil
}

// The three forms of a name in iSCSI.
var (
	iqnName = regexp.MustCompile(`^iqn\.\d{4}-\d{2}\.([[:alnum:]-.]+)(:[^,;*&$|\s]+)$`)
	euiName = regexp.MustCompile(`^eui\.[[:alnum:]]{16}$`)
	naaName = regexp.MustCompile(`^naa\.[[:alnum:]]{32}$`)
)

func iscsiName(p *field.Path, name string) errs {
	known := map[string]*regexp.Regexp{"iqn": iqnName, "eui": euiName, "naa": naaName}
	for prefix, form := range known {
		if strings.HasPrefix(name, prefix) {
			if !form.MatchString(name) {
				return errs{field.Invalid(p, name, "must be valid format")}
			}
			return nil
		}
	}
	return errs{field.Invalid(p, name, "must be valid format starting with iqn, eui, or naa")}
}

// iscsi wants a secret where the session or discovery is authenticated.
func iscsi(p *field.Path, portal, iqn string, lun int32, initiator *string, lacksSecret bool) errs {
	all := present(p.Child("targetPortal"), portal)
	if iqn == "" {
		all = append(all, field.Required(p.Child("iqn"), ""))
	} else {
		all = append(all, iscsiName(p.Child("iqn"), iqn)...)
	}
	all = append(all, between(p.Child("lun"), lun, 0, 255)...)
	if lacksSecret {
		all = append(all, field.Required(p.Child("secretRef"), ""))
	}
	if initiator != nil {
		all = append(all, iscsiName(p.Child("initiatorname"), *initiator)...)
	}
	return all
}

// fibreChannel wants targets with a LUN, or world wide identifiers.
func fibreChannel(p *field.Path, f *v1.FCVolumeSource) errs {
	var all errs
	switch names, ids := len(f.TargetWWNs) > 0, len(f.WWIDs) > 0; {
	case !names && !ids:
		all = append(all, field.Required(p.Child("targetWWNs"), "must specify either targetWWNs or wwids, but not both"))
	case names && ids:
		all = append(all, field.Invalid(p.Child("targetWWNs"), f.TargetWWNs, "targetWWNs and wwids can not be specified simultaneously"))
	case names && f.Lun == nil:
		all = append(all, field.Required(p.Child("lun"), "lun is required if targetWWNs is specified"))
	case names:
		all = append(all, between(p.Child("lun"), *f.Lun, 0, 255)...)
	}
	return all
}

func flocker(p *field.Path, f *v1.FlockerVolumeSource) errs {
	switch {
	case f.DatasetName == "" && f.DatasetUUID == "":
		return errs{field.Required(p, "one of datasetName and datasetUUID is required")}
	case f.DatasetName != "" && f.DatasetUUID != "":
		return errs{field.Invalid(p, "resource", "datasetName and datasetUUID can not be specified simultaneously")}
	case strings.Contains(f.DatasetName, "/"):
		return errs{field.Invalid(p.Child("datasetName"), f.DatasetName, "must not contain '/'")}
	}
	return nil
}

func quobyte(p *field.Path, q *v1.QuobyteVolumeSource) errs {
	all := present(p.Child("volume"), q.Volume)
	if q.Registry == "" {
		return append(all, field.Required(p.Child("registry"), "must be a host:port pair or multiple pairs separated by commas"))
	}
	if len(q.Tenant) >= 65 {
		all = append(all, field.Required(p.Child("tenant"), "must be a UUID and may not exceed a length of 64 characters"))
	}
	for _, pair := range strings.Split(q.Registry, ",") {
		if host, port, ok := strings.Cut(pair, ":"); !ok || host == "" || port == "" {
			all = append(all, field.Invalid(p.Child("registry"), q.Registry,
				"must be a host:port pair or multiple pairs separated by commas"))
			break
		}
	}
	return all
}

func azureDisk(p *field.Path, d *v1.AzureDiskVolumeSource) errs {
	all := present(p.Child("diskName"), d.DiskName)
	all = append(all, present(p.Child("diskURI"), d.DataDiskURI)...)
	all = append(all, oneOfIfSet(p.Child("cachingMode"), d.CachingMode, v1.AzureDataDiskCachingNone, v1.AzureDataDiskCachingReadOnly,
		v1.AzureDataDiskCachingReadWrite)...)
	all = append(all, oneOfIfSet(p.Child("kind"), d.Kind, v1.AzureSharedBlobDisk, v1.AzureDedicatedBlobDisk, v1.AzureManagedDisk)...)
	managed := deref(d.Kind) == v1.AzureManagedDisk
	switch {
	case managed && !strings.HasPrefix(d.DataDiskURI, "/subscriptions/"):
		all = append(all, field.NotSupported(p.Child("diskURI"), d.DataDiskURI,
			[]string{"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"}))
	case !managed && d.Kind != nil && !strings.HasPrefix(d.DataDiskURI, "https://"):
		all = append(all, field.NotSupported(p.Child("diskURI"), d.DataDiskURI,
			[]string{"https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"}))
	}
	return all
}

// flexVolume keeps the options that the node itself passes to a driver from being set.
func flexVolume(p *field.Path, driver string, options map[string]string) errs {
	all := present(p.Child("driver"), driver)
	for _, key := range sorted(options) {
		domain, _, _ := strings.Cut(key, "/")
		if whole := "." + strings.ToLower(domain); strings.HasSuffix(whole, ".kubernetes.io") || strings.HasSuffix(whole, ".k8s.io") {
			all = append(all, field.Invalid(p.Child("options").Key(key), key, "kubernetes.io and k8s.io namespaces are reserved"))
		}
	}
	return all
}

// oldPersistent checks the sources of persistent volumes whose drivers are
// gone. They were not checked at first, so a stored volume may keep what it
// has.
func oldPersistent(p *field.Path, s *v1.PersistentVolumeSpec) errs {
	// These have the same source in pods.
	all := storageSource(p, &v1.VolumeSource{Flocker: s.Flocker, Quobyte: s.Quobyte, VsphereVolume: s.VsphereVolume,
		PhotonPersistentDisk: s.PhotonPersistentDisk, PortworxVolume: s.PortworxVolume, AzureDisk: s.AzureDisk})
	if g := s.Glusterfs; g != nil {
		all = append(all, present(p.Child("glusterfs", "endpoints"), g.EndpointsName)...)
		all = append(all, present(p.Child("glusterfs", "path"), g.Path)...)
		if ns := g.EndpointsNamespace; ns != nil {
			all = append(all, invalid(p.Child("glusterfs", "endpointsNamespace"), *ns, apivalidation.ValidateNamespaceName(*ns, false))...)
		}
	}
	if r := s.RBD; r != nil {
		if len(r.CephMonitors) == 0 {
			all = append(all, field.Required(p.Child("rbd", "monitors"), ""))
		}
		all = append(all, present(p.Child("rbd", "image"), r.RBDImage)...)
	}
	if c := s.CephFS; c != nil && len(c.Monitors) == 0 {
		all = append(all, field.Required(p.Child("cephfs", "monitors"), ""))
	}
	if i := s.ScaleIO; i != nil {
		all = append(all, present(p.Child("scaleIO", "gateway"), i.Gateway)...)
		all = append(all, present(p.Child("scaleIO", "system"), i.System)...)
		all = append(all, present(p.Child("scaleIO", "volumeName"), i.VolumeName)...)
	}
	if o := s.StorageOS; o != nil {
		all = append(all, named(p.Child("storageos", "volumeName"), o.VolumeName, validation.IsDNS1123Label)...)
		if o.VolumeNamespace != "" {
			all = append(all, invalid(p.Child("storageos", "volumeNamespace"), o.VolumeNamespace,
				validation.IsDNS1123Label(o.VolumeNamespace))...)
		}
		if ref := o.SecretRef; ref != nil {
			all = append(all, present(p.Child("storageos", "secretRef", "name"), ref.Name)...)
			all = append(all, present(p.Child("storageos", "secretRef", "namespace"), ref.Namespace)...)
		}
	}
	return all.WithOrigin(laterOrigin)
}
