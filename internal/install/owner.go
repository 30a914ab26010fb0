package install

import (
	"os"
	"syscall"
)

// ownerOf is who owns a file.
func ownerOf(file string) (User, error) {
	st, err := os.Stat(file)
	if err != nil {
		return User{}, err
	}
	sys := st.Sys().(*syscall.Stat_t)
	return User{UID: int(sys.Uid), GID: int(sys.Gid)}, nil
}
