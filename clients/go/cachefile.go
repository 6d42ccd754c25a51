package concord

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	fileFormat         = 1
	fileBytesMax       = 1 << 30
	saveChangedEvery   = time.Second
	saveConfirmedEvery = 30 * time.Second
)

// cacheFile is the last-known-good file: what a cache held, for a start without nodes. It has a line of JSON and the
// SHA-256 of that line. It is replaced as a whole or not at all, and only its owner may read it. What is damaged, may be
// written by others, or is of another scope, is not used, and not deleted.
type cacheFile struct {
	path    string
	scope   fileScope
	isSaved bool
	// revision and at are those of the last save.
	revision uint64
	at       moment
}

// fileScope is what a file is of. The keys in it are the same in every environment, and the values are not.
type fileScope struct {
	Environment string      `json:"environment"`
	Definitions []string    `json:"definitions"`
	Configs     []string    `json:"configs"`
	Filters     [][2]string `json:"filters"`
}

type fileContent struct {
	Format      int               `json:"concord_go_cache"`
	Scope       fileScope         `json:"scope"`
	Revision    uint64            `json:"revision"`
	Node        string            `json:"node"`
	ConfirmedAt time.Time         `json:"confirmed_at"`
	Definitions []*Definition     `json:"definitions"`
	Configs     []json.RawMessage `json:"configs"`
}

func newCacheFile(path string, environment *environment, options *CacheOptions) *cacheFile {
	made := &cacheFile{path: path}
	if environment != nil {
		made.scope.Environment = environment.name
	}
	made.scope.Definitions = slices.Sorted(slices.Values(options.Definitions))
	made.scope.Configs = slices.Sorted(slices.Values(options.Configs))
	// They were checked when the cache was made.
	params, _ := options.Filters.params()
	for _, each := range params {
		made.scope.Filters = append(made.scope.Filters, [2]string{each.name, each.value})
	}
	return made
}

// restore reads the file.
func (c *Cache) restore() {
	if c.file == nil {
		return
	}
	content, err := c.file.load()
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	configs := (&configSet{}).edit()
	if err == nil {
		for _, text := range content.Configs {
			made := new(Config)
			if err = json.Unmarshal(text, made); err != nil {
				break
			}
			configs.put(Pointer{made.Definition, made.Key}, made)
		}
	}
	if err != nil {
		problem := fmt.Sprintf("the file %s is not used: %v", c.file.path, err)
		c.client.logger.Warn(problem)
		c.update(func(s *snapshot) { s.fileProblem = problem })
		return
	}
	definitions := map[string]*Definition{}
	for _, each := range content.Definitions {
		each.Schema = nullAsNil(each.Schema)
		definitions[each.Key] = each
	}
	c.update(func(s *snapshot) {
		s.configs, s.definitions = configs.made, definitions
		s.revision, s.node, s.fileConfirmedAt = content.Revision, content.Node, content.ConfirmedAt
	})
}

// save writes the file: soon after a change, and from time to time so that its age is known.
func (c *Cache) save(isLast bool) {
	s := c.current.Load()
	if c.file == nil || !s.isConfirmed {
		return
	}
	due := saveConfirmedEvery
	if s.revision != c.file.revision {
		due = saveChangedEvery
	}
	if !isLast && c.file.isSaved && c.file.at.age() < due {
		return
	}
	content := &fileContent{
		Format: fileFormat, Scope: c.file.scope, Revision: s.revision, Node: s.node,
		// A moment of the wall clock that is not later than the confirmation.
		ConfirmedAt: time.Now().Add(-s.confirmedAt.age()).Round(0),
		Definitions: make([]*Definition, 0, len(s.definitions)), Configs: make([]json.RawMessage, 0, s.configs.size),
	}
	for _, each := range s.definitions {
		content.Definitions = append(content.Definitions, each)
	}
	var err error
	for _, each := range s.configs.all() {
		text, encodeErr := encode(each)
		err = errors.Join(err, encodeErr)
		content.Configs = append(content.Configs, text)
	}
	if err == nil {
		err = c.file.write(content)
	}
	problem := ""
	if err != nil {
		problem = fmt.Sprintf("the file %s can't be written: %v", c.file.path, err)
	}
	if problem != s.fileProblem {
		if s.fileProblem == "" {
			c.client.logger.Warn(problem)
		}
		c.update(func(s *snapshot) { s.fileProblem = problem })
	}
	c.file.isSaved, c.file.revision, c.file.at = true, s.revision, now()
}

func (f *cacheFile) write(content *fileContent) error {
	line, err := encode(content)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(line)
	text := slices.Concat(line, []byte("\n"), []byte(hex.EncodeToString(sum[:])), []byte("\n"))
	folder := filepath.Dir(f.path)
	// It is made for the owner alone.
	temporary, err := os.CreateTemp(folder, "."+filepath.Base(f.path)+".*")
	if err != nil {
		return err
	}
	_, err = temporary.Write(text)
	if err == nil {
		err = temporary.Sync()
	}
	if err = errors.Join(err, temporary.Close()); err == nil {
		err = os.Rename(temporary.Name(), f.path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary.Name()))
	}
	return syncFolder(folder)
}

func (f *cacheFile) load() (*fileContent, error) {
	file, err := openUnblocked(f.path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	if err := checkOwner(info); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(file, fileBytesMax))
	if err != nil {
		return nil, err
	}
	line, rest, _ := bytes.Cut(text, []byte("\n"))
	if sum := sha256.Sum256(line); string(bytes.TrimSpace(rest)) != hex.EncodeToString(sum[:]) {
		return nil, errors.New("its checksum is wrong")
	}
	content := &fileContent{}
	if err := json.Unmarshal(line, content); err != nil {
		return nil, fmt.Errorf("it can't be read: %w", err)
	}
	if content.Format != fileFormat {
		return nil, errors.New("it has another format")
	}
	if !f.scope.equal(content.Scope) {
		return nil, errors.New("it is of a cache of other definitions or filters, or of another environment")
	}
	return content, nil
}

func (s fileScope) equal(other fileScope) bool {
	return s.Environment == other.Environment && slices.Equal(s.Definitions, other.Definitions) &&
		slices.Equal(s.Configs, other.Configs) && slices.Equal(s.Filters, other.Filters)
}
