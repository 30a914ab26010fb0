package localvolume

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// limiter holds directories to a size.
type limiter interface {
	// works tells whether the filesystem of dir enforces limits.
	works(dir string) bool
	// limit puts dir and what will be made in it under a limit, by a project id
	// that nothing else has. The size may change later.
	limit(dir string, project uint32, bytes int64) error
	// used is what a project holds now.
	used(dir string, project uint32) (int64, error)
}

// firstProject is where our project ids begin, far from those that a kubelet
// gives to emptyDirs (from 1048577).
const firstProject = 0x40000000

// projectQuota limits by the project quotas of ext4 and XFS. Both answer the
// VFS calls of quotactl(2); numbers and structures are those of
// linux/quota.h, linux/dqblk_xfs.h and linux/fs.h.
type projectQuota struct{}

const (
	projectType     = 2 // PRJQUOTA
	getQuota        = 0x800007<<8 | projectType
	setQuota        = 0x800008<<8 | projectType
	getState        = ('X'<<8|5)<<8 | projectType // Q_XGETQSTAT
	projectEnforced = 1 << 5                      // FS_QUOTA_PDQ_ENFD
	blockLimits     = 1                           // QIF_BLIMITS
	quotaBlock      = 1024

	getXattr       = 0x801c581f // FS_IOC_FSGETXATTR
	setXattr       = 0x401c5820 // FS_IOC_FSSETXATTR
	projectInherit = 0x200      // FS_XFLAG_PROJINHERIT
)

// dqblk is struct if_dqblk.
type dqblk struct {
	hard, soft, space, inodesHard, inodesSoft, inodes, blockTime, inodeTime uint64
	valid                                                                   uint32
	_                                                                       uint32
}

// fsxattr is struct fsxattr.
type fsxattr struct {
	flags, extent, extents, project, cow uint32
	_                                    [8]byte
}

func (projectQuota) call(dir string, command, id uint32, arg unsafe.Pointer) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), uintptr(command), uintptr(id), uintptr(arg), 0, 0)
	if errno != 0 {
		return os.NewSyscallError("quotactl_fd", errno)
	}
	return nil
}

func (q projectQuota) works(dir string) bool {
	// Larger than struct fs_quota_stat: a version byte, then the flags.
	var state [128]byte
	if err := q.call(dir, getState, 0, unsafe.Pointer(&state)); err != nil {
		return false
	}
	return *(*uint16)(unsafe.Pointer(&state[2]))&projectEnforced != 0
}

func (q projectQuota) limit(dir string, project uint32, bytes int64) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	var attr fsxattr
	if err := ioctl(f, getXattr, unsafe.Pointer(&attr)); err != nil {
		return fmt.Errorf("reading the project of %s: %w", dir, err)
	}
	attr.project, attr.flags = project, attr.flags|projectInherit
	if err := ioctl(f, setXattr, unsafe.Pointer(&attr)); err != nil {
		return fmt.Errorf("setting the project of %s: %w", dir, err)
	}
	blocks := uint64(bytes+quotaBlock-1) / quotaBlock
	want := dqblk{hard: blocks, soft: blocks, valid: blockLimits}
	if err := q.call(dir, setQuota, project, unsafe.Pointer(&want)); err != nil {
		return fmt.Errorf("setting the quota of %s: %w", dir, err)
	}
	return nil
}

func (q projectQuota) used(dir string, project uint32) (int64, error) {
	var have dqblk
	err := q.call(dir, getQuota, project, unsafe.Pointer(&have))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return 0, nil
	}
	return int64(have.space), err
}

func ioctl(f *os.File, request uint, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(request), uintptr(arg)); errno != 0 {
		return os.NewSyscallError("ioctl", errno)
	}
	return nil
}
