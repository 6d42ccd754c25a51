//go:build go1.25

package concord

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// script plays the nodes: each reply is for the next attempt, and the last one for all later ones.
type script struct {
	t       *testing.T
	replies []any
	takes   time.Duration
	nodes   []string
	at      []time.Duration
	client  *Client
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	s.nodes = append(s.nodes, r.URL.Host)
	s.at = append(s.at, time.Since(start))
	if err := sleep(r.Context(), s.takes); err != nil {
		return nil, err
	}
	reply := s.replies[0]
	if len(s.replies) > 1 {
		s.replies = s.replies[1:]
	}
	switch reply := reply.(type) {
	case error:
		return nil, reply
	case func() *http.Response:
		return reply(), nil
	}
	panic("no reply")
}

var start time.Time

// scripted runs a test in fake time, with three nodes of which the first is asked first.
func scripted(t *testing.T, replies []any, takes time.Duration, test func(*script)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		real := bootTime
		bootTime = func() time.Duration { return 0 }
		defer func() { bootTime = real }()
		start = time.Now()
		s := &script{t: t, replies: replies, takes: takes}
		client, err := New(Options{URLs: []string{"http://a,http://b,http://c"}, Key: "k", NoReader: true, Transport: s})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		client.cluster.jitter = func() float64 { return 1 }
		client.cluster.preferred.Store(0)
		s.client = client
		test(s)
	})
}

func (s *script) read(ctx context.Context) error {
	_, err := s.client.Request(ctx, "GET", "/x", nil, "")
	return err
}

func (s *script) keyed(ctx context.Context) error {
	_, err := s.client.Request(ctx, "PUT", "/x", nil, "k")
	return err
}

func (s *script) plain(ctx context.Context) error {
	_, err := s.client.Request(ctx, "POST", "/x", nil, "")
	return err
}

func played(status int, body string, header ...string) any {
	return func() *http.Response { return answer(status, body, header...) }
}

func rejecting(status int, code string, header ...string) any {
	return func() *http.Response { return rejects(status, code, header...) }
}

var (
	done        = played(200, `{"data":1}`)
	unavailable = rejecting(503, "unavailable")
	background  = context.Background()
)

func isUnknown(err error) *UnknownOutcomeError {
	var found *UnknownOutcomeError
	errors.As(err, &found)
	return found
}

func TestAReadAsksTheNextNodeAtOnceAndStaysThere(t *testing.T) {
	scripted(t, []any{errRefused, errLost, done}, 0, func(s *script) {
		if err := s.read(background); err != nil || !slices.Equal(s.nodes, []string{"a", "b", "c"}) || time.Since(start) != 0 {
			t.Fatal(err, s.nodes, time.Since(start))
		}
		if err := s.read(background); err != nil || s.nodes[3] != "c" {
			t.Fatal(err, s.nodes)
		}
	})
}

func TestBetweenTwoRoundsThereIsAPauseThatGrows(t *testing.T) {
	scripted(t, append(slices.Repeat([]any{errRefused}, 9), done), 0, func(s *script) {
		if err := s.read(background); err != nil || len(s.nodes) != 10 {
			t.Fatal(err, s.nodes)
		}
		ms := time.Millisecond
		if want := []time.Duration{0, 0, 0, 50 * ms, 50 * ms, 50 * ms, 150 * ms, 150 * ms, 150 * ms, 350 * ms}; !slices.Equal(s.at, want) {
			t.Fatal(s.at)
		}
	})
}

func TestANodeSaysHowLongToWait(t *testing.T) {
	slow := rejecting(503, "unavailable", "Retry-After", "3")
	scripted(t, []any{slow, unavailable, unavailable, done}, 0, func(s *script) {
		if err := s.keyed(background); err != nil || s.at[3] != 3*time.Second {
			t.Fatal(err, s.at)
		}
	})
}

func TestAWriteThatNoNodeTookIsUnavailable(t *testing.T) {
	for _, each := range []any{errRefused, unavailable} {
		scripted(t, []any{each}, 0, func(s *script) {
			for _, write := range []func(context.Context) error{s.keyed, s.plain} {
				var found *UnavailableError
				if err := write(background); !errors.As(err, &found) || len(found.Attempts) != attemptsTold {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestTooManyRequestsUntilTheEndSaySo(t *testing.T) {
	scripted(t, []any{rejecting(429, "overloaded")}, 0, func(s *script) {
		if err := s.keyed(background); !errors.Is(err, ErrRateLimited) {
			t.Fatal(err)
		}
	})
}

func TestAWriteWithAKeyIsSentAgain(t *testing.T) {
	for _, first := range []any{errLost, rejecting(504, "outcome_unknown"), rejecting(500, "internal_error"), played(502, "")} {
		scripted(t, []any{first, done}, 0, func(s *script) {
			if err := s.keyed(background); err != nil || len(s.nodes) != 2 {
				t.Fatal(err, s.nodes)
			}
		})
	}
}

func TestAWriteWithoutAKeyIsNotSentAgainOnceItMayBeApplied(t *testing.T) {
	scripted(t, []any{errLost, done}, 0, func(s *script) {
		if found := isUnknown(s.plain(background)); found == nil || found.IdempotencyKey != "" || len(s.nodes) != 1 {
			t.Fatal(found, s.nodes)
		}
	})
	scripted(t, []any{errRefused, done}, 0, func(s *script) {
		if err := s.plain(background); err != nil {
			t.Fatal(err)
		}
	})
}

func TestAfterACopyOfUnknownOutcomeNothingElseMakesItAFailure(t *testing.T) {
	later := []any{errRefused, unavailable, rejecting(429, "overloaded"), errLost}
	for _, code := range []string{"401 unauthorized", "403 forbidden", "422 data_invalid", "404 definition_not_found", "409 patch_test_failed", "409 environment_frozen", "507 storage_full"} {
		var status int
		var name string
		fmt.Sscan(code, &status, &name)
		later = append(later, rejecting(status, name))
	}
	for _, last := range later {
		scripted(t, []any{errLost, last}, 0, func(s *script) {
			if found := isUnknown(s.keyed(background)); found == nil || found.IdempotencyKey != "k" || errors.Is(found, ErrForbidden) {
				t.Fatal(found)
			}
		})
	}
}

func TestARejectionThatTheClusterStoresDecidesEarlierCopies(t *testing.T) {
	for code, want := range map[string]error{"config_exists": ErrConflict, "unique_taken": ErrConflict, "config_not_found": ErrNotFound, "precondition_failed": ErrPrecondition} {
		status := want.(*rejection).status
		scripted(t, []any{errLost, rejecting(status, code)}, 0, func(s *script) {
			if err := s.keyed(background); !errors.Is(err, want) {
				t.Fatal(code, err)
			}
		})
		for _, path := range []string{"/api/v1/change_request/7/apply", "/api/v1/change_request/", "/api/v1/change_request"} {
			scripted(t, []any{errLost, rejecting(status, code)}, 0, func(s *script) {
				_, err := s.client.Request(background, "POST", path, nil, "k")
				if found := isUnknown(err); found == nil || found.Rejection.Code() != code {
					t.Fatal(path, code, err)
				}
			})
		}
	}
}

func TestADefinitionThatIsNotFoundDecidesBatchesAndPatches(t *testing.T) {
	for _, each := range []string{"POST /api/v1/batch", "PATCH /x"} {
		method, path, _ := strings.Cut(each, " ")
		scripted(t, []any{errLost, rejecting(404, "definition_not_found")}, 0, func(s *script) {
			if _, err := s.client.Request(background, method, path, nil, "k"); !errors.Is(err, ErrNotFound) {
				t.Fatal(each, err)
			}
		})
	}
}

func TestWhatStandsBetweenDoesNotSayThatNothingWasApplied(t *testing.T) {
	for _, status := range []int{400, 408, 409, 429, 502, 503, 504, 302, 304} {
		scripted(t, []any{played(status, `{"from":"a proxy"}`)}, 0, func(s *script) {
			if isUnknown(s.plain(background)) == nil {
				t.Fatal(status)
			}
		})
		scripted(t, []any{played(status, ""), done}, 0, func(s *script) {
			if err := s.read(background); err != nil {
				t.Fatal(status, err)
			}
		})
	}
}

func TestAResponseThatWasCutOffIsNoSuccess(t *testing.T) {
	cut := played(200, `{"data": `)
	scripted(t, []any{cut}, 0, func(s *script) {
		if isUnknown(s.plain(background)) == nil {
			t.Fatal()
		}
	})
	scripted(t, []any{cut, done, cut, done}, 0, func(s *script) {
		if err := errors.Join(s.keyed(background), s.read(background)); err != nil {
			t.Fatal(err)
		}
	})
}

func TestANodeThatHangsDoesNotTakeTheTimeOfTheOthers(t *testing.T) {
	scripted(t, []any{done}, time.Minute, func(s *script) {
		if isUnknown(s.keyed(background)) == nil || !slices.Equal(s.at[:3], []time.Duration{0, 5 * time.Second, 10 * time.Second}) {
			t.Fatal(s.at)
		}
	})
	scripted(t, []any{done}, time.Minute, func(s *script) {
		if isUnknown(s.plain(background)) == nil || time.Since(start) != 30*time.Second {
			t.Fatal(time.Since(start))
		}
	})
}

func TestCopiesAreSentOnlyWhileTheClusterCertainlyRemembersTheFirst(t *testing.T) {
	scripted(t, []any{errLost, unavailable}, 500*time.Millisecond, func(s *script) {
		ctx, cancel := context.WithTimeout(background, 5*time.Minute)
		defer cancel()
		if isUnknown(s.keyed(ctx)) == nil || time.Since(start) > 500*time.Millisecond+resendWindow {
			t.Fatal(time.Since(start))
		}
	})
	scripted(t, []any{unavailable}, 0, func(s *script) {
		ctx, cancel := context.WithTimeout(background, 5*time.Minute)
		defer cancel()
		if err := s.keyed(ctx); !isUnavailable(err) || time.Since(start) < 4*time.Minute {
			t.Fatal(err, time.Since(start))
		}
	})
}

func TestNoCopyIsSentAfterALossThatWasNoticedLate(t *testing.T) {
	scripted(t, []any{errLost, done}, time.Minute, func(s *script) {
		s.client.cluster.attempt = 2 * time.Minute
		ctx, cancel := context.WithTimeout(background, 5*time.Minute)
		defer cancel()
		if isUnknown(s.keyed(ctx)) == nil || len(s.nodes) != 1 {
			t.Fatal(s.at)
		}
	})
}

func TestACanceledWriteThatMayHaveBeenSentHasAnUnknownOutcome(t *testing.T) {
	scripted(t, []any{done}, time.Minute, func(s *script) {
		ctx, cancel := context.WithCancel(background)
		time.AfterFunc(time.Second, cancel)
		if found := isUnknown(s.keyed(ctx)); !errors.Is(found, context.Canceled) || time.Since(start) != time.Second {
			t.Fatal(found)
		}
		var unavailable *UnavailableError
		if err := s.read(ctx); !errors.As(err, &unavailable) || !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if err := s.keyed(ctx); !errors.As(err, &unavailable) || len(s.nodes) != 1 {
			t.Fatal("it was not sent", err, s.nodes)
		}
	})
}

func TestAClosedClientEndsCalls(t *testing.T) {
	scripted(t, []any{done}, time.Minute, func(s *script) {
		time.AfterFunc(time.Second, func() { s.client.Close() })
		if found := isUnknown(s.keyed(background)); !errors.Is(found, ErrClosed) || time.Since(start) != time.Second {
			t.Fatal(time.Since(start))
		}
	})
}

func TestAClosedClientSendsNothing(t *testing.T) {
	scripted(t, []any{done}, 0, func(s *script) {
		s.client.Close()
		for _, err := range []error{s.keyed(background), s.plain(background), s.read(background)} {
			if !isUnavailable(err) || !errors.Is(err, ErrClosed) || len(s.nodes) != 0 {
				t.Fatal(err, s.nodes)
			}
		}
	})
}

// dripping is a stream that has a comment from time to time, and nothing else.
type dripping struct{ ctx context.Context }

func (d dripping) Read(into []byte) (int, error) {
	if err := sleep(d.ctx, time.Second); err != nil {
		return 0, err
	}
	return copy(into, ":\n"), nil
}

func (d dripping) Close() error { return nil }

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestAStateThatNeverComesIsReadFromAnotherNode(t *testing.T) {
	scripted(t, []any{done}, 0, func(s *script) {
		s.client.cluster.transport.roundTrip = roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.URL.Host == "a" {
				return &http.Response{StatusCode: 200, Header: http.Header{}, Body: dripping{r.Context()}}, nil
			}
			return answer(200, `event: state`+"\n"+`data: {"revision":7,"definitions":[],"configs":[],"complete":true}`+"\n\n"), nil
		})
		ctx, cancel := context.WithTimeout(background, time.Hour)
		defer cancel()
		for event, err := range s.client.Watch(ctx, WatchOptions{Initial: true}) {
			if err != nil || event.Revision != 7 || time.Since(start) > 6*time.Minute {
				t.Error(event, err, time.Since(start))
			}
			break
		}
	})
}

func TestTheHighestRevisionIsNoted(t *testing.T) {
	scripted(t, []any{played(200, `{}`, "X-Concord-Revision", "9"), played(304, "", "X-Concord-Revision", "7")}, 0, func(s *script) {
		if err := errors.Join(s.read(background), s.read(background)); err != nil || s.client.Revision() != 9 {
			t.Fatal(err, s.client.Revision())
		}
	})
}
