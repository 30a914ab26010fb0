package why

import (
	"fmt"
	"regexp"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// quoted finds the name in messages such as: configmap "words" not found.
var (
	missingObject = regexp.MustCompile(`(?i)(configmap|secret|persistentvolumeclaim|serviceaccount)s? "([^"]+)" not found`)
	missingKey    = regexp.MustCompile(`(?i)couldn't find key (\S+) in (ConfigMap|Secret) (\S+)`)
	missingItem   = regexp.MustCompile(`references non-existent (config|secret) key: ([^\s,]+)`)
	volumeName    = regexp.MustCompile(`for volume "([^"]+)"`)
)

// podVolumes tells which volume a pod waits for.
func podVolumes(w *World, p *v1.Pod, events []*v1.Event) *Answer {
	if p.Spec.NodeName == "" || started(p) || p.Status.Phase != v1.PodPending {
		return nil
	}
	e := lastEvent(events, "FailedMount", "FailedAttachVolume", "FailedMapVolume", "VolumeResizeFailed")
	if e == nil {
		return nil
	}
	volume := ""
	if m := volumeName.FindStringSubmatch(e.Message); m != nil {
		volume = m[1]
	}
	field := volumeField(p, volume)
	var a *Answer
	switch cause := e.Message; {
	case missingObject.MatchString(cause):
		m := missingObject.FindStringSubmatch(cause)
		a = missingConfig(m[1], p.Namespace, m[2], "volume "+volume).at(field)
	case missingItem.MatchString(cause):
		m := missingItem.FindStringSubmatch(cause)
		kind, name := volumeObject(p, volume)
		a = found(Failing, "KeyMissing", "%s %s has no key %s, which volume %s names", kind, name, m[2], volume).at(field).
			held(kind, p.Namespace, name).remedy("add the key, or mark the volume's source optional")
	case strings.Contains(cause, "Multi-Attach"):
		a = found(Failing, "MultiAttach", "volume %s is attached to another node and is ReadWriteOnce: %s", volume,
			brief(cause, 160)).at(field).remedy("end the pod that uses it on the other node, or wait until that node is gone")
	case e.Reason == "FailedAttachVolume":
		a = found(Failing, "AttachFailed", "volume %s cannot be attached to node %s: %s", volume, p.Spec.NodeName,
			brief(cause, 200)).at(field)
	default:
		_, rest, ok := strings.Cut(cause, fmt.Sprintf("for volume %q : ", volume))
		if !ok {
			rest = cause
		}
		a = found(Failing, "MountFailed", "volume %s cannot be mounted on node %s: %s", volume, p.Spec.NodeName, brief(rest, 200)).at(field)
	}
	return a.fact("event", "%s, %d times, last %s ago", e.Reason, max(e.Count, 1), Age(w.Now, eventTime(e)))
}

func volumeField(p *v1.Pod, name string) string {
	for i, v := range p.Spec.Volumes {
		if v.Name == name {
			return fmt.Sprintf("spec.volumes[%d]", i)
		}
	}
	return "spec.volumes"
}

// volumeObject is the object that a volume takes its files from.
func volumeObject(p *v1.Pod, volume string) (kind, name string) {
	for _, v := range p.Spec.Volumes {
		switch {
		case v.Name != volume:
		case v.ConfigMap != nil:
			return "ConfigMap", v.ConfigMap.Name
		case v.Secret != nil:
			return "Secret", v.Secret.SecretName
		}
	}
	return "volume", volume
}

// kindNames spell the kinds of messages.
var kindNames = map[string]string{"configmap": "ConfigMap", "secret": "Secret", "persistentvolumeclaim": "PersistentVolumeClaim",
	"serviceaccount": "ServiceAccount"}

func missingConfig(word, namespace, name, user string) *Answer {
	kind := kindNames[strings.ToLower(word)]
	return found(Failing, kind+"Missing", "%s %s does not exist in namespace %s; %s needs it", kind, name, namespace, user).
		held(kind, namespace, name).remedy("create %s %s/%s, or mark the reference optional", kind, namespace, name)
}

// podContainers tells which container does not run, in the order they start.
func podContainers(w *World, p *v1.Pod, events []*v1.Event) *Answer {
	for _, s := range statuses(p) {
		if t := s.State.Waiting; t != nil {
			if a := waiting(w, p, s, t, events); a != nil {
				return a.fact("restarts", "%d", s.RestartCount)
			}
		}
		if t := s.State.Terminated; t != nil && t.ExitCode != 0 && p.Status.Phase != v1.PodSucceeded {
			return containerEnd(w, p, s, t)
		}
	}
	for _, s := range p.Status.InitContainerStatuses {
		c, path := containerOf(p, s.Name)
		sidecar := c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
		if s.State.Running != nil && !sidecar && p.Status.Phase == v1.PodPending {
			return found(Waiting, "InitRunning", "init container %s still runs (for %s): the containers start after it", s.Name,
				Age(w.Now, s.State.Running.StartedAt.Time)).at(path)
		}
	}
	return nil
}

// waiting tells why a container waits; nil if it waits only for its turn.
func waiting(w *World, p *v1.Pod, s v1.ContainerStatus, t *v1.ContainerStateWaiting, events []*v1.Event) *Answer {
	c, path := containerOf(p, s.Name)
	switch t.Reason {
	case "", "PodInitializing", "ContainerCreating":
		return nil
	case "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError", "RegistryUnavailable",
		"SignatureValidationFailed":
		return imageFault(p, c, path, t, events)
	case "CreateContainerConfigError":
		return configFault(p, c, path, t.Message)
	case "CrashLoopBackOff":
		if l := s.LastTerminationState.Terminated; l != nil {
			if a := livenessKill(p, c, path, events); a != nil {
				return a
			}
			return containerEnd(w, p, s, l)
		}
	case "CreateContainerError", "RunContainerError", "StartError":
		return startFault(c, path, t.Message)
	}
	return found(Failing, t.Reason, "container %s waits: %s: %s", c.Name, t.Reason, brief(t.Message, 200)).at(path)
}

// imageFault tells why an image cannot be had.
func imageFault(p *v1.Pod, c v1.Container, path string, t *v1.ContainerStateWaiting, events []*v1.Event) *Answer {
	text := t.Message
	// A back-off repeats the cause or not; the event has it whole.
	for _, e := range events {
		if e.Reason == "Failed" && strings.HasPrefix(e.Message, "Failed to pull image") && strings.Contains(e.Message, c.Image) {
			text += " " + e.Message
			break
		}
	}
	a := func(code, format string, args ...any) *Answer {
		return found(Failing, code, "image %s of container %s: %s", c.Image, c.Name, fmt.Sprintf(format, args...)).
			at(path+".image").fact("message", "%s", brief(tail(t.Message), 240))
	}
	if e := lastEvent(events, "FailedToRetrieveImagePullSecret"); e != nil {
		var names []string
		for _, s := range p.Spec.ImagePullSecrets {
			names = append(names, s.Name)
		}
		return a("PullSecretMissing", "image pull Secret %s cannot be read in namespace %s", strings.Join(names, ", "), p.Namespace).
			held("Secret", p.Namespace, strings.Join(names, ",")).fact("event", "%s", brief(e.Message, 200)).
			remedy("create the Secret (type kubernetes.io/dockerconfigjson) or fix spec.imagePullSecrets")
	}
	has := func(words ...string) bool {
		for _, word := range words {
			if strings.Contains(strings.ToLower(text), word) {
				return true
			}
		}
		return false
	}
	switch {
	case t.Reason == "InvalidImageName":
		return a("ImageNameInvalid", "the name is not valid").remedy("fix the name: REGISTRY/REPOSITORY:TAG, lower case")
	case t.Reason == "ErrImageNeverPull":
		return a("ImageNeverPull", "it is not on node %s and imagePullPolicy is Never", p.Spec.NodeName).
			remedy("load the image on the node, or set imagePullPolicy: IfNotPresent")
	case has("no such host", "server misbehaving", "name resolution", "lookup "):
		return a("RegistryUnknown", "the registry's host name does not resolve on node %s", p.Spec.NodeName).
			remedy("check the registry in the image's name, and the DNS of the node")
	case has("unauthorized", "401", "403", "forbidden", "denied", "no basic auth"):
		return a("ImageDenied", "the registry refuses it: no access, or no such repository").
			remedy("name a Secret with credentials in spec.imagePullSecrets, or fix the name")
	case has("not found", "404", "manifest unknown", "does not exist"):
		return a("ImageNotFound", "the registry has no such image or tag").remedy("fix the name or tag")
	case has("x509", "certificate"):
		return a("RegistryCertificate", "the registry's certificate is not trusted by node %s", p.Spec.NodeName)
	case has("connection refused", "timeout", "unreachable", "i/o timeout", "deadline"):
		return a("RegistryUnreachable", "the registry does not answer from node %s", p.Spec.NodeName).
			remedy("check the network, proxy and address of the registry from the node")
	case has("no space"):
		return a("NoSpace", "node %s has no space left for it", p.Spec.NodeName).held("Node", "", p.Spec.NodeName)
	}
	return a(t.Reason, "it cannot be pulled: %s", brief(tail(t.Message), 200))
}

// configFault tells what a container's configuration lacks.
func configFault(p *v1.Pod, c v1.Container, path, message string) *Answer {
	if m := missingKey.FindStringSubmatch(message); m != nil {
		name := m[3][strings.LastIndex(m[3], "/")+1:]
		return found(Failing, "KeyMissing", "%s %s has no key %s, which env of container %s names", m[2], name, m[1], c.Name).
			at(path+".env").held(m[2], p.Namespace, name).remedy("add the key, or mark the reference optional")
	}
	if m := missingObject.FindStringSubmatch(message); m != nil {
		return missingConfig(m[1], p.Namespace, m[2], "container "+c.Name).at(path + ".env")
	}
	if strings.Contains(message, "runAsNonRoot") || strings.Contains(message, "run as root") || strings.Contains(message,
		"non-numeric user") {
		return found(Failing, "RunAsNonRoot", "container %s must not run as root (runAsNonRoot) and image %s does: %s", c.Name, c.Image,
			brief(message, 140)).at(path + ".securityContext.runAsNonRoot").remedy("set runAsUser, or an image with a numeric USER")
	}
	return found(Failing, "ConfigInvalid", "container %s cannot be configured: %s", c.Name, brief(message, 220)).at(path)
}

// startFault tells why the runtime does not start a container.
func startFault(c v1.Container, path, message string) *Answer {
	command := strings.Join(append(append([]string(nil), c.Command...), c.Args...), " ")
	switch {
	case strings.Contains(message, "executable file not found"), strings.Contains(message, "no such file or directory"):
		return found(Failing, "CommandNotFound", "command %s of container %s is not in image %s", brief(first(c.Command, "of the image"),
			60),
			c.Name, c.Image).at(path+".command").fact("command", "%s", brief(command, 160)).fact("message", "%s", brief(tail(message), 240))
	case strings.Contains(message, "permission denied"):
		return found(Failing, "CommandDenied", "command %s of container %s may not be executed (permission denied)",
			brief(first(c.Command, "of the image"), 60), c.Name).at(path+".command").fact("message", "%s", brief(tail(message), 240))
	}
	return found(Failing, "StartFailed", "the runtime cannot start container %s: %s", c.Name, brief(tail(message), 220)).at(path)
}

func first(list []string, otherwise string) string {
	if len(list) > 0 {
		return list[0]
	}
	return otherwise
}
