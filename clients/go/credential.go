package concord

import (
	"errors"
	"os"
	"strings"
	"sync"
	"time"
)

// credential is the access key: given, or in a file that is read again when it changes, so that a key is rotated
// without a restart.
type credential struct {
	file string
	mu   sync.Mutex
	key  string
	seen fileVersion
}

type fileVersion struct {
	modified time.Time
	size     int64
	inode    uint64
}

func newCredential(key, file string) (*credential, error) {
	if (key == "") == (file == "") {
		return nil, errors.New("concord: give either a key or a file that contains it")
	}
	made := &credential{file: file}
	var err error
	if file == "" {
		made.key, err = validKey(key)
	} else {
		_, err = made.current()
	}
	return made, err
}

func (c *credential) current() (string, error) {
	if c.file == "" {
		return c.key, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.read(); err != nil && c.key == "" {
		return "", err
	}
	// A file that is being replaced changes nothing.
	return c.key, nil
}

func (c *credential) read() error {
	info, err := os.Stat(c.file)
	if err != nil {
		return err
	}
	version := fileVersion{info.ModTime(), info.Size(), inodeOf(info)}
	if version == c.seen {
		return nil
	}
	text, err := os.ReadFile(c.file)
	if err != nil {
		return err
	}
	// A node's file may have two keys during a rotation: the first is the new one.
	first := ""
	if lines := strings.Fields(string(text)); len(lines) > 0 {
		first = lines[0]
	}
	key, err := validKey(first)
	if err != nil {
		return err
	}
	c.key, c.seen = key, version
	return nil
}

// validKey does not show the key in its error.
func validKey(key string) (string, error) {
	key = strings.TrimSpace(key)
	if key == "" || strings.ContainsFunc(key, func(r rune) bool { return r < '!' || r > '~' }) {
		return "", errors.New("concord: the key is empty, or has characters that no key has")
	}
	return key, nil
}
