package proxy

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/proxy/rules"
)

// CheckKernel tries, apart from the host's own network, whether the kernel
// takes what the rules of its address families are made of; the error names all
// that is missing. A process that may make no network namespace learns nothing:
// then the first rules that are written tell.
func CheckKernel(log *slog.Logger) error {
	err := rules.ProbeHost(families()...)
	var lack *rules.Lack
	switch {
	case errors.Is(err, rules.ErrUntried):
		log.Info("not trying beforehand whether the kernel takes the service rules", "err", err)
		return nil
	case errors.As(err, &lack):
		return fmt.Errorf("checking Linux %s: %w: load the modules, or start a kernel that has this (%s is the least that is tested)",
			release(), err, leastTested)
	}
	return err
}

// leastTested is the oldest Linux that the real-kernel tests run on.
const leastTested = "6.1"

// families are those this host can do.
func families() []model.Family {
	if v6Enabled() {
		return []model.Family{model.V4, model.V6}
	}
	return []model.Family{model.V4}
}

// release is the kernel's version.
func release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "of an unknown release"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// sctpSetting is there where SCTP is tracked, once anything is.
const sctpSetting = "/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_closed"

// warnOfSCTP tells of a kernel that takes the rules, but not to SCTP ports.
func warnOfSCTP(log *slog.Logger, setting string) {
	if _, err := os.Stat(setting); errors.Is(err, os.ErrNotExist) {
		log.Warn("the kernel does not track SCTP (CONFIG_NF_CT_PROTO_SCTP): ports of SCTP Services are not translated")
	}
}
