package checkpoint

// DevicesPerNUMA are device IDs by the NUMA node they are near to; -1 for
// those that do not say.
type DevicesPerNUMA map[int64][]string

// PodDevicesEntry is what one container holds of one resource.
type PodDevicesEntry struct {
	PodUID        string
	ContainerName string
	ResourceName  string
	DeviceIDs     DevicesPerNUMA
	// AllocResp is the plugin's answer as it came.
	AllocResp []byte
}

type checkpointData struct {
	PodDeviceEntries  []PodDevicesEntry
	RegisteredDevices map[string][]string
}

// Devices is the content of the device manager's file.
type Devices struct {
	Data     checkpointData
	Checksum Checksum
}

// NewDevices makes the content of the device manager's file.
func NewDevices(entries []PodDevicesEntry, registered map[string][]string) *Devices {
	d := &Devices{Data: checkpointData{entries, registered}}
	d.Checksum = sum(d.Data)
	return d
}

// ReadDevices reads the device manager's file.
func ReadDevices(path string) (entries []PodDevicesEntry, registered map[string][]string, err error) {
	d := &Devices{}
	found, err := Read(path, d)
	if err != nil || !found {
		return nil, nil, err
	}
	if d.Checksum != sum(d.Data) {
		return nil, nil, &CorruptError{path, errChecksum}
	}
	return d.Data.PodDeviceEntries, d.Data.RegisteredDevices, nil
}
