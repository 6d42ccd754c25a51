package concord

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

var keyOfRecord = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9_.~-]{0,254}\z`)

type param struct{ name, value string }

func target(path string, params []param) string {
	for n, each := range params {
		separator := "&"
		if n == 0 {
			separator = "?"
		}
		path += separator + escape(each.name) + "=" + escape(each.value)
	}
	return path
}

// escape writes a blank as %20, which means the same everywhere.
func escape(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }

// checkKey rejects what is no key: `..` or nothing at the end of a path would name another resource.
func checkKey(key, of string) error {
	if !keyOfRecord.MatchString(key) {
		return invalid("key_invalid", fmt.Sprintf("%q is not a key: expected 1 to 255 characters of A-Z a-z 0-9 _ . ~ -", key), of)
	}
	return nil
}

func definitionPath(definition string, rest ...string) (string, error) {
	if err := checkKey(definition, definitionKey); err != nil {
		return "", err
	}
	return strings.Join(append([]string{definitionsPath, definition}, rest...), "/"), nil
}

func configPath(definition, key string, rest ...string) (string, error) {
	if err := checkKey(key, "config_key"); err != nil {
		return "", err
	}
	return definitionPath(definition, append([]string{"config", key}, rest...)...)
}

// newIdempotencyKey is random: two writes must never have the same one.
func newIdempotencyKey() string {
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		panic("the system has no random numbers: " + err.Error())
	}
	return hex.EncodeToString(random[:])
}

func checkIdempotencyKey(key string) error {
	if len(key) > 255 || strings.ContainsFunc(key, func(r rune) bool { return r < '!' || r > '~' }) {
		return invalid("header_invalid", "an idempotency key is 1 to 255 visible ASCII characters", "header")
	}
	return nil
}

// reasonText is a reason as a header has it. Blanks at its ends are no part of the value of a header.
func reasonText(reason string) (string, error) {
	reason = strings.Trim(reason, " \t")
	isControl := func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }
	if !utf8.ValidString(reason) || strings.ContainsFunc(reason, isControl) {
		return "", invalid("header_invalid", "a reason is a text without line ends or other control characters", "header")
	}
	return reason, nil
}

// writeRequest makes a write of definitions or configs. Unless it is a dry run, it has an idempotency key.
func (w *write) request(method, path string, body any) (request, error) {
	made := request{method: method, header: http.Header{}}
	reason, err := reasonText(w.reason)
	if err == nil {
		err = checkIdempotencyKey(w.idempotencyKey)
	}
	if err != nil {
		return made, err
	}
	if reason != "" {
		made.header.Set("X-Change-Reason", reason)
	}
	if w.ifMatch != nil {
		made.header.Set("If-Match", `"`+strconv.FormatUint(*w.ifMatch, 10)+`"`)
	}
	if w.createOnly {
		made.header.Set("If-None-Match", "*")
	}
	params := w.params
	if w.dryRun {
		params = append(params, param{"dry_run", "true"})
	} else {
		made.isWrite, made.idempotencyKey = true, w.idempotencyKey
		if made.idempotencyKey == "" {
			made.idempotencyKey = newIdempotencyKey()
		}
	}
	made.target = target(path, params)
	if body == nil {
		return made, nil
	}
	made.header.Set("Content-Type", "application/json")
	made.body, err = encode(body)
	return made, err
}

// payload is the JSON of data that are written. Markers of secret values must stand where they stood.
func payload(data any) (json.RawMessage, error) {
	text, err := encode(data)
	if err != nil {
		return nil, fmt.Errorf("concord: the data are not JSON: %w", err)
	}
	return unmarked(text)
}
