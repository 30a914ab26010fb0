#!/bin/sh
# Writes generated code. Usage: hack/generate.sh [openapi]...; no argument
# means everything. `make generate` calls it.
set -eu
cd "$(dirname "$0")/.."

openapi() {
	out=internal/control/api/openapi
	log=$(mktemp)
	echo "generating $out"
	go tool openapi-gen \
		--go-header-file hack/header.txt \
		--output-dir "$out" \
		--output-pkg github.com/berth-dev/berth/internal/control/api/openapi \
		--output-file zz_generated.openapi.go \
		--report-filename "$log" \
		k8s.io/api/admission/v1 \
		k8s.io/api/admissionregistration/v1 \
		k8s.io/api/apps/v1 \
		k8s.io/api/authentication/v1 \
		k8s.io/api/authorization/v1 \
		k8s.io/api/autoscaling/v1 \
		k8s.io/api/autoscaling/v2 \
		k8s.io/api/batch/v1 \
		k8s.io/api/certificates/v1 \
		k8s.io/api/coordination/v1 \
		k8s.io/api/core/v1 \
		k8s.io/api/discovery/v1 \
		k8s.io/api/events/v1 \
		k8s.io/api/flowcontrol/v1 \
		k8s.io/api/networking/v1 \
		k8s.io/api/node/v1 \
		k8s.io/api/policy/v1 \
		k8s.io/api/rbac/v1 \
		k8s.io/api/resource/v1 \
		k8s.io/api/scheduling/v1 \
		k8s.io/api/scheduling/v1alpha3 \
		k8s.io/api/storage/v1 \
		k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1 \
		k8s.io/apimachinery/pkg/api/resource \
		k8s.io/apimachinery/pkg/apis/meta/v1 \
		k8s.io/apimachinery/pkg/runtime \
		k8s.io/apimachinery/pkg/util/intstr \
		k8s.io/apimachinery/pkg/version \
		k8s.io/kube-aggregator/pkg/apis/apiregistration/v1 \
		k8s.io/metrics/pkg/apis/metrics/v1 \
		k8s.io/metrics/pkg/apis/metrics/v1beta1
	rm -f "$log"
}

[ $# -gt 0 ] || set -- openapi
for part in "$@"; do "$part"; done
