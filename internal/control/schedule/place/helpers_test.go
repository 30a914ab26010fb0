package place

import (
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func storageClass(name, mode, provisioner string) *storagev1.StorageClass {
	m := storagev1.VolumeBindingMode(mode)
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: &m}
}

func tellsRoom(name string) *storagev1.CSIDriver {
	yes := true
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSIDriverSpec{StorageCapacity: &yes}}
}
