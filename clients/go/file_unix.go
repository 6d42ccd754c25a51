//go:build unix

package concord

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// openUnblocked does not wait for the writer of a pipe that stands in place of a file.
func openUnblocked(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

func checkOwner(info fs.FileInfo) error {
	if status, ok := info.Sys().(*syscall.Stat_t); ok && int(status.Uid) != os.Geteuid() && status.Uid != 0 {
		return errors.New("it belongs to another user")
	}
	if info.Mode().Perm()&0o022 != 0 {
		return errors.New("other users may write it")
	}
	return nil
}

// syncFolder makes a rename survive a power loss.
func syncFolder(folder string) error {
	opened, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer opened.Close()
	return opened.Sync()
}

func inodeOf(info fs.FileInfo) uint64 {
	if status, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(status.Ino)
	}
	return 0
}
