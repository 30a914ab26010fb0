package api

import (
	"runtime"

	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/util/compatibility"
	basecompatibility "k8s.io/component-base/compatibility"

	"github.com/berth-dev/berth/internal/kube"
)

// served is the effective version the library works with, with our name in
// what /version answers.
type served struct {
	basecompatibility.EffectiveVersion
}

func effectiveVersion() basecompatibility.EffectiveVersion {
	return served{compatibility.DefaultBuildEffectiveVersion()}
}

func (served) Info() *version.Info {
	return &version.Info{
		Major:                 "1",
		Minor:                 "37",
		EmulationMajor:        "1",
		EmulationMinor:        "37",
		MinCompatibilityMajor: "1",
		MinCompatibilityMinor: "36",
		GitVersion:            kube.Version,
		GitCommit:             "",
		GitTreeState:          "clean",
		BuildDate:             "1970-01-01T00:00:00Z",
		GoVersion:             runtime.Version(),
		Compiler:              runtime.Compiler,
		Platform:              runtime.GOOS + "/" + runtime.GOARCH,
	}
}
