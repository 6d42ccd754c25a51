// Package concord is a client of Concord, a replicated store for typed configuration.
//
//	client, err := concord.New(concord.Options{
//		URLs: []string{"http://127.0.0.1:8101", "http://127.0.0.1:8102", "http://127.0.0.1:8103"},
//		Key:  os.Getenv("CONCORD_API_KEY"),
//	})
//	if err != nil {
//		return err
//	}
//	defer client.Close()
//	made, err := client.Create(ctx, "limits", "acme", map[string]any{"plan": "pro"})
//
// # Outcomes
//
// A request goes to the next node if one does not respond. A write ends in one of three ways:
//
//   - success;
//   - [*APIError] or [*UnavailableError]: the write was certainly not applied;
//   - [*UnknownOutcomeError]: the write may have been applied. The same call with [IdempotencyKey] is safe.
//
// A canceled context ends a call in the same way: a write that may have been sent has an unknown outcome.
// Use [errors.Is] with [ErrNotFound], [ErrConflict] and so on to tell rejections apart.
//
// # Time
//
// A call lasts until the deadline of its context. Without a deadline it lasts for [Options.Timeout].
//
// # Data
//
// Data are JSON. [Config.Data] is the text that the node sent, so numbers keep their digits and members their order.
// [Config.Decode] makes Go values of it, with [encoding/json.Number] where the target has no type. [Typed] and
// [TypedCache] do this for one type.
package concord

// Version is the version of this client.
const Version = "0.1.0"
