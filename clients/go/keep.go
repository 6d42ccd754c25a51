package concord

import (
	"bytes"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// In place of each secret value that the key may not see, data to write back have a marker that keeps it:
// `{"$concord-keep": true}`. Which value that is, the service knows by the place alone. So a marker of this client has its
// place in it, and one at another place is an error before anything is sent.
const markerName = "$concord-keep"

// markerPrefix tells markers of this process from data.
var markerPrefix = newIdempotencyKey() + ":"

func marker(place []string) json.RawMessage {
	return object([]member{{markerName, quoted(markerPrefix + pointer(place))}})
}

// placesOf are the places of secret values that a response names; isAll is false if there are more.
func placesOf(redacted []string) (places [][]string, isAll bool) {
	isAll = true
	for _, each := range redacted {
		text, err := url.PathUnescape(strings.TrimPrefix(each, "#"))
		if each == "..." || err != nil {
			isAll = false
			continue
		}
		place := []string{}
		for _, part := range strings.Split(text, "/")[1:] {
			place = append(place, strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~"))
		}
		places = append(places, place)
	}
	return places, isAll
}

// Editable is the data to change and write back: a marker keeps each secret value that the key may not see. A write with
// a marker that was moved is rejected before it is sent.
func (c *Config) Editable() json.RawMessage {
	data := c.Data
	// If there are more places, the service rejects their nulls.
	places, _ := placesOf(c.Redacted)
	for _, place := range places {
		data, _ = replaced(data, place, marker(place))
	}
	return data
}

// replaced is the text with another value at a place; false if there is no such place.
func replaced(text json.RawMessage, place []string, value json.RawMessage) (json.RawMessage, bool) {
	if len(place) == 0 {
		return value, true
	}
	isDone := false
	change := func(inner json.RawMessage) json.RawMessage {
		inner, isDone = replaced(inner, place[1:], value)
		return inner
	}
	if found, ok := elements(text); ok {
		n, err := strconv.Atoi(place[0])
		if err != nil || n < 0 || n >= len(found) {
			return text, false
		}
		found[n] = change(found[n])
		return array(found), isDone
	}
	text = edited(text, place[0], change)
	return text, isDone
}

// unmarked is data as they are sent.
func unmarked(text json.RawMessage) (json.RawMessage, error) {
	if !bytes.Contains(text, []byte(markerPrefix)) {
		return text, nil
	}
	return unmarkedAt(text, nil)
}

func unmarkedAt(text json.RawMessage, place []string) (json.RawMessage, error) {
	if found, ok := elements(text); ok {
		for n := range found {
			var err error
			if found[n], err = unmarkedAt(found[n], append(slices.Clip(place), strconv.Itoa(n))); err != nil {
				return nil, err
			}
		}
		return array(found), nil
	}
	found, ok := members(text)
	if !ok {
		return text, nil
	}
	if len(found) == 1 && found[0].name == markerName {
		var kept string
		if json.Unmarshal(found[0].value, &kept) == nil && strings.HasPrefix(kept, markerPrefix) {
			if kept[len(markerPrefix):] != pointer(place) {
				return nil, movedSecret(kept[len(markerPrefix):], place)
			}
			return object([]member{{markerName, json.RawMessage("true")}}), nil
		}
	}
	for n := range found {
		var err error
		if found[n].value, err = unmarkedAt(found[n].value, append(slices.Clip(place), found[n].name)); err != nil {
			return nil, err
		}
	}
	return object(found), nil
}

func movedSecret(from string, place []string) error {
	text := "the secret value of " + from + " can't be moved by a key that may not see it: use a JSON Patch, or write it again"
	return invalid("data_invalid", text, append([]string{"data"}, place...)...)
}

// keepSecrets puts markers into data that were read as a Go value and changed: `before` is what that value was written
// as unchanged, `after` as changed. What the program has set is written, what it has removed is removed. What it has not
// touched is kept, as long as its place certainly means the same value.
func keepSecrets(before, after json.RawMessage, redacted []string) (json.RawMessage, error) {
	kept := after
	places, isAll := placesOf(redacted)
	if !isAll {
		// In a Go value, the null of a place that is not named may have become an empty text, which would be written.
		text := "the config has more secret values than the response names: use a JSON Patch"
		return nil, invalid("data_invalid", text, "data")
	}
	for _, place := range places {
		old, new := at(before, place), at(after, place)
		isUntouched := bytes.Equal(old, new)
		if !isSameWay(before, after, place, isUntouched) {
			return nil, movedSecret(pointer(place), place)
		}
		if old != nil && new == nil && hasMoved(before, after, place) {
			return nil, movedSecret(pointer(place), place)
		}
		if !isUntouched {
			continue
		}
		var isDone bool
		if old == nil {
			// The type does not have the member. Where the program has removed its owner, it goes with that.
			owner := place[:max(0, len(place)-1)]
			if at(before, owner) != nil && at(after, owner) == nil {
				if hasMoved(before, after, owner) {
					return nil, movedSecret(pointer(place), place)
				}
				continue
			}
			kept, isDone = added(kept, place, marker(place))
		} else {
			kept, isDone = replaced(kept, place, marker(place))
		}
		if !isDone {
			return nil, movedSecret(pointer(place), place)
		}
	}
	return unmarked(kept)
}

// at is the value at a place; nil if there is none.
func at(text json.RawMessage, place []string) json.RawMessage {
	for _, part := range place {
		text = child(text, part)
	}
	return text
}

func child(text json.RawMessage, name string) json.RawMessage {
	if found, ok := elements(text); ok {
		if n, err := strconv.Atoi(name); err == nil && n >= 0 && n < len(found) {
			return found[n]
		}
		return nil
	}
	found, _ := members(text)
	for _, each := range found {
		if each.name == name {
			return each.value
		}
	}
	return nil
}

// isSameWay tells whether the arrays on the way to a place have as many elements as before, and, if asked for, certainly
// the same element there. Otherwise the elements may have changed their places.
func isSameWay(before, after json.RawMessage, place []string, isExact bool) bool {
	for _, part := range place {
		old, wasArray := elements(before)
		new, isArray := elements(after)
		before, after = child(before, part), child(after, part)
		if !wasArray || !isArray {
			continue
		}
		if len(old) != len(new) || isExact && !bytes.Equal(before, after) {
			return false
		}
		for n := range old {
			// One that looked the same is gone: the element here may be that one.
			if isExact && bytes.Equal(old[n], before) && !bytes.Equal(new[n], old[n]) {
				return false
			}
		}
	}
	return true
}

// hasMoved tells whether what is at a place no longer is at another one now, as an entry of a map with another key.
func hasMoved(before, after json.RawMessage, place []string) bool {
	n := 1
	for n < len(place) && at(after, place[:n]) != nil {
		n++
	}
	return len(place) > 0 && isNew(before, after, at(before, place[:n]))
}

// isNew tells whether the text has a value at some place where it was not before.
func isNew(before, text, value json.RawMessage) bool {
	if bytes.Equal(before, text) {
		return false
	}
	if bytes.Equal(text, value) {
		return true
	}
	if found, ok := elements(text); ok {
		for n, each := range found {
			if isNew(child(before, strconv.Itoa(n)), each, value) {
				return true
			}
		}
		return false
	}
	found, _ := members(text)
	return slices.ContainsFunc(found, func(each member) bool { return isNew(child(before, each.name), each.value, value) })
}

// added is the text with one more member in the object that has the place; false if there is no such object.
func added(text json.RawMessage, place []string, value json.RawMessage) (json.RawMessage, bool) {
	if len(place) == 0 {
		return text, false
	}
	last := len(place) - 1
	found, ok := members(at(text, place[:last]))
	if !ok {
		return text, false
	}
	return replaced(text, place[:last], object(append(found, member{place[last], value})))
}
