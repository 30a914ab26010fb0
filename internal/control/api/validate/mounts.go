package validate

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (c *containers) mounts(p *field.Path, one *v1.Container) errs {
	var all errs
	paths := map[string]bool{}
	for i := range one.VolumeMounts {
		at, m := p.Index(i), &one.VolumeMounts[i]
		if m.Name == "" {
			all = append(all, field.Required(at.Child("name"), ""))
		} else if _, ok := c.volumes[m.Name]; !ok {
			all = append(all, field.NotFound(at.Child("name"), m.Name))
		}
		all = append(all, present(at.Child("mountPath"), m.MountPath)...)
		if paths[m.MountPath] {
			all = append(all, field.Invalid(at.Child("mountPath"), m.MountPath, "must be unique"))
		}
		paths[m.MountPath] = true
		for _, d := range one.VolumeDevices {
			if d.Name == m.Name && d.Name != "" {
				all = append(all, field.Invalid(at.Child("name"), m.Name, "must not already exist in volumeDevices"))
			}
			if d.DevicePath == m.MountPath && d.DevicePath != "" {
				all = append(all, field.Invalid(at.Child("mountPath"), m.MountPath, "must not already exist as a path in volumeDevices"))
			}
		}
		if m.SubPath != "" {
			all = append(all, localPath(at.Child("subPath"), m.SubPath)...)
		}
		if m.SubPathExpr != "" {
			if m.SubPath != "" {
				all = append(all, field.Invalid(at.Child("subPathExpr"), m.SubPathExpr, "subPathExpr and subPath are mutually exclusive"))
			}
			all = append(all, localPath(at.Child("subPathExpr"), m.SubPathExpr)...)
		}
		all = append(all, propagation(at, m, one)...)
	}
	return all
}

func propagation(p *field.Path, m *v1.VolumeMount, one *v1.Container) errs {
	all := oneOfIfSet(p.Child("mountPropagation"), m.MountPropagation,
		v1.MountPropagationBidirectional, v1.MountPropagationHostToContainer, v1.MountPropagationNone)
	mode := deref(m.MountPropagation)
	privileged := one.SecurityContext != nil && deref(one.SecurityContext.Privileged)
	if mode == v1.MountPropagationBidirectional && !privileged {
		all = append(all, field.Forbidden(p.Child("mountPropagation"),
			"Bidirectional mount propagation is available only to privileged containers"))
	}
	if m.RecursiveReadOnly == nil {
		return all
	}
	at := p.Child("recursiveReadOnly")
	all = append(all, oneOf(at, *m.RecursiveReadOnly, v1.RecursiveReadOnlyDisabled, v1.RecursiveReadOnlyIfPossible,
		v1.RecursiveReadOnlyEnabled)...)
	if *m.RecursiveReadOnly == v1.RecursiveReadOnlyDisabled {
		return all
	}
	if !m.ReadOnly {
		all = append(all, field.Forbidden(at, "may only be specified when readOnly is true"))
	}
	if mode != "" && mode != v1.MountPropagationNone {
		all = append(all, field.Forbidden(at, "may only be specified when mountPropagation is None or not specified"))
	}
	return all
}

func (c *containers) devices(p *field.Path, one *v1.Container) errs {
	var all errs
	names, paths := map[string]bool{}, map[string]bool{}
	for i, d := range one.VolumeDevices {
		at := p.Index(i)
		switch v, ok := c.volumes[d.Name]; {
		case d.Name == "":
			all = append(all, field.Required(at.Child("name"), ""))
		case names[d.Name]:
			all = append(all, field.Invalid(at.Child("name"), d.Name, "must be unique"))
		case !ok:
			all = append(all, field.NotFound(at.Child("name"), d.Name))
		case v.PersistentVolumeClaim == nil && v.Ephemeral == nil:
			all = append(all, field.Invalid(at.Child("name"), d.Name,
				"can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"))
		}
		names[d.Name] = true
		all = append(all, present(at.Child("devicePath"), d.DevicePath)...)
		all = append(all, noBacksteps(at.Child("devicePath"), d.DevicePath)...)
		if paths[d.DevicePath] {
			all = append(all, field.Invalid(at.Child("devicePath"), d.DevicePath, "must be unique"))
		}
		paths[d.DevicePath] = true
		for _, m := range one.VolumeMounts {
			if m.Name == d.Name && d.Name != "" {
				all = append(all, field.Invalid(at.Child("name"), d.Name, "must not already exist in volumeMounts"))
			}
		}
	}
	return all
}
