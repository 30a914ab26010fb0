package pods

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// pickContainer resolves the container of a log, exec or attach request. A pod
// with one container needs no name; any other must be told which one, and the
// error lists the choices.
func pickContainer(pod *v1.Pod, wanted string) (string, error) {
	main, inits := names(pod.Spec.Containers), names(pod.Spec.InitContainers)
	ephemeral := make([]string, 0, len(pod.Spec.EphemeralContainers))
	for _, c := range pod.Spec.EphemeralContainers {
		ephemeral = append(ephemeral, c.Name)
	}
	if wanted != "" {
		if slices.Contains(main, wanted) || slices.Contains(inits, wanted) || slices.Contains(ephemeral, wanted) {
			return wanted, nil
		}
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", wanted, pod.Name))
	}
	switch {
	case len(main) == 1:
		return main[0], nil
	case len(main) == 0:
		return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s", pod.Name))
	}
	text := fmt.Sprintf("a container name must be specified for pod %s, choose one of: %s", pod.Name, main)
	if len(inits) > 0 {
		text += fmt.Sprintf(" or one of the init containers: %s", inits)
	}
	if len(ephemeral) > 0 {
		text += fmt.Sprintf(" or one of the ephemeral containers: %s", ephemeral)
	}
	return "", apierrors.NewBadRequest(text)
}

func names(containers []v1.Container) []string {
	out := make([]string, len(containers))
	for i := range containers {
		out[i] = containers[i].Name
	}
	return out
}
