package concord

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
)

const (
	readerNameMax = 255
	labelMax      = 255
	labelsMax     = 16
	labelsTextMax = 1024
)

var (
	// sentAsIs is visible ASCII, with blanks only inside.
	sentAsIs      = regexp.MustCompile(`\A[!-~](?:[ -~]*[!-~])?\z`)
	pathOfConfig  = regexp.MustCompile(`\A/api/v1/config_definition/[^/]+/config/[^/]+\z`)
	unfilteredBy  = []string{"definition", "config_key", "from", "initial", "prev", "wait", "consistency", "max_staleness_ms", "min_revision"}
	errLabelsOnly = errors.New("concord: labels are those of a reader: give its name too, as Reader")
)

// reader is the name and the labels that a client sends of itself, by which a rollout chooses who gets its candidates.
// They go with what follows configs: get, bulk read, watch and poll. A node rejects a filtered watch of a reader, so
// that goes without them.
type reader struct {
	name   string
	labels map[string]string
	text   string
}

// readerOf returns nil for no reader, and if the host name can't be sent.
func readerOf(options *Options) (*reader, error) {
	name := options.Reader
	if options.NoReader && name != "" {
		return nil, errors.New("concord: give Reader or NoReader, not both")
	}
	if !options.NoReader && name == "" {
		host, err := os.Hostname()
		if err == nil && isSentAsIs(host, readerNameMax) {
			name = host
		}
	}
	if name == "" {
		if len(options.Labels) > 0 {
			return nil, errLabelsOnly
		}
		return nil, nil
	}
	return newReader(name, options.Labels)
}

func newReader(name string, labels map[string]string) (*reader, error) {
	if !isSentAsIs(name, readerNameMax) {
		return nil, fmt.Errorf("concord: %q is not the name of a reader: expected 1 to %d visible ASCII characters", name, readerNameMax)
	}
	made := &reader{name: name, labels: map[string]string{}}
	var pairs []string
	for label, value := range labels {
		isLabel := isSentAsIs(label, labelMax) && isSentAsIs(value, labelMax) && !strings.Contains(label+value, ",")
		if !isLabel || strings.Contains(label, "=") {
			return nil, fmt.Errorf("concord: %q is not a label: expected 1 to %d visible ASCII characters on each side, "+
				"without a comma, and no = in the name", label+"="+value, labelMax)
		}
		made.labels[label] = value
		pairs = append(pairs, label+"="+value)
	}
	slices.Sort(pairs)
	made.text = strings.Join(pairs, ",")
	if len(pairs) > labelsMax || len(made.text) > labelsTextMax {
		return nil, fmt.Errorf("concord: a reader has at most %d labels, of %d bytes in all", labelsMax, labelsTextMax)
	}
	return made, nil
}

func isSentAsIs(text string, most int) bool { return len(text) <= most && sentAsIs.MatchString(text) }

// labelsOf are those of a variable: `ring=canary,region=eu`.
func labelsOf(text string) (map[string]string, error) {
	labels := map[string]string{}
	for _, part := range strings.Split(text, ",") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		name, value, hasValue := strings.Cut(part, "=")
		name = strings.TrimSpace(name)
		if _, isTwice := labels[name]; isTwice || !hasValue {
			return nil, fmt.Errorf("concord: %q is not a label, or is one twice: expected NAME=VALUE, each name once", strings.TrimSpace(part))
		}
		labels[name] = strings.TrimSpace(value)
	}
	return labels, nil
}

// on is the request with the headers of the reader, if the response is as a reader sees it.
func (r *reader) on(sent request) request {
	if sent.isProven || !isReadAsReader(sent.method, sent.target) {
		return sent
	}
	header := sent.header.Clone()
	if header == nil {
		header = http.Header{}
	}
	header.Set("X-Concord-Reader", r.name)
	if r.text != "" {
		header.Set("X-Concord-Labels", r.text)
	}
	sent.header = header
	return sent
}

func isReadAsReader(method, target string) bool {
	_, query, _ := strings.Cut(target, "?")
	var names []string
	for _, pair := range strings.Split(query, "&") {
		if name, _, _ := strings.Cut(pair, "="); name != "" {
			names = append(names, name)
		}
	}
	path := plainPath(target)
	switch {
	case method == "POST":
		return path == readPath
	case method != "GET":
		return false
	case path == watchPath || path == changesPath:
		return !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(unfilteredBy, name) })
	}
	return pathOfConfig.MatchString(path) && !slices.Contains(names, "revision")
}

// variantOf is the id of the change request whose candidate a response has; empty for the proven data.
func variantOf(header string) string {
	parts := strings.Split(header, ";")
	if strings.TrimSpace(parts[0]) != "candidate" {
		return ""
	}
	for _, part := range parts[1:] {
		if id, ok := strings.CutPrefix(strings.TrimSpace(part), "change="); ok {
			return id
		}
	}
	return ""
}
