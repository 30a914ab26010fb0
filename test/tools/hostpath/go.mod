module github.com/berth-dev/berth/test/tools/hostpath

go 1.26.0

tool github.com/kubernetes-csi/csi-driver-host-path/cmd/hostpathplugin

require (
	google.golang.org/grpc v1.65.0
	k8s.io/kubelet v0.31.0
)

require (
	github.com/container-storage-interface/spec v1.8.0 // indirect
	github.com/fxamacker/cbor/v2 v2.7.0 // indirect
	github.com/go-logr/logr v1.4.2 // indirect
	github.com/gogo/protobuf v1.3.2 // indirect
	github.com/golang/glog v1.2.1 // indirect
	github.com/golang/protobuf v1.5.4 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/kubernetes-csi/csi-driver-host-path v1.7.2 // indirect
	github.com/kubernetes-csi/csi-lib-utils v0.9.0 // indirect
	github.com/pborman/uuid v1.2.1 // indirect
	github.com/x448/float16 v0.8.4 // indirect
	golang.org/x/net v0.26.0 // indirect
	golang.org/x/sys v0.36.0 // indirect
	golang.org/x/text v0.16.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20240701130421-f6361c86f094 // indirect
	google.golang.org/protobuf v1.34.2 // indirect
	gopkg.in/inf.v0 v0.9.1 // indirect
	k8s.io/apimachinery v0.31.0 // indirect
	k8s.io/klog/v2 v2.130.1 // indirect
	k8s.io/kubernetes v1.20.0 // indirect
	k8s.io/utils v0.0.0-20240711033017-18e509b52bc8 // indirect
)

// The driver takes two small packages from a repository that is no library;
// ours stand in for them, so that nothing of it is fetched.
replace k8s.io/kubernetes => ./kubernetes
