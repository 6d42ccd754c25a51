package concord_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	concord "github.com/concord-config/concord/clients/go"
	"github.com/concord-config/concord/clients/go/concordtest"
)

// Limits is the type of the examples.
type Limits struct {
	Plan  string `json:"plan"`
	Seats int    `json:"seats"`
}

// node is a node in memory. A program has concord.New or concord.OptionsFromEnv here.
func node() (*concordtest.Server, *concord.Client) {
	server := concordtest.Start()
	client, err := concord.New(server.Options())
	if err != nil {
		log.Fatal(err)
	}
	return server, client
}

func Example() {
	server, client := node()
	defer server.Close()
	defer client.Close()
	ctx := context.Background()

	limits := concord.NewTyped[Limits](client, "limits")
	spec := concord.DefinitionSpec{Schema: concord.SchemaOf[Limits](), Indexes: []string{"plan"}}
	if _, err := client.EnsureDefinition(ctx, "limits", spec); err != nil {
		log.Fatal(err)
	}
	made, err := limits.Create(ctx, "acme", Limits{Plan: "pro", Seats: 3}, concord.Reason("contract signed"))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := limits.Update(ctx, "acme", func(l *Limits) error { l.Seats++; return nil }); err != nil {
		log.Fatal(err)
	}
	_, err = limits.Put(ctx, "acme", Limits{Plan: "free"}, concord.IfMatch(made.Revision))
	fmt.Println(errors.Is(err, concord.ErrPrecondition))

	for acme, err := range limits.List(ctx, concord.Where(concord.Filters{"plan": "pro"})) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(acme.Key, acme.Value.Seats)
	}
	// Output:
	// true
	// acme 4
}

func ExampleClient_NewCache() {
	server, client := node()
	defer server.Close()
	defer client.Close()
	ctx := context.Background()
	if _, err := client.CreateDefinition(ctx, "limits", concord.DefinitionSpec{}); err != nil {
		log.Fatal(err)
	}
	if _, err := client.Create(ctx, "limits", "acme", Limits{"pro", 3}); err != nil {
		log.Fatal(err)
	}

	cache, err := client.NewCache(ctx, concord.CacheOptions{Definitions: []string{"limits"}})
	if err != nil {
		log.Fatal(err)
	}
	limits := concord.NewTypedCache[Limits](cache, "limits")
	acme, err := limits.Get("acme")
	fmt.Println(acme.Seats, err)
	explained, err := limits.Explain("acme")
	fmt.Println(explained.Source, explained.Revision == explained.StateRevision, err)
	_, err = limits.Get("nobody")
	fmt.Println(errors.Is(err, concord.ErrNotCached))
	// Output:
	// 3 <nil>
	// live true <nil>
	// true
}

func ExampleClient_Watch() {
	server, client := node()
	defer server.Close()
	defer client.Close()
	ctx := context.Background()
	made, err := client.CreateDefinition(ctx, "limits", concord.DefinitionSpec{})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := client.Create(ctx, "limits", "acme", Limits{"pro", 3}); err != nil {
		log.Fatal(err)
	}

	options := concord.WatchOptions{Definitions: []string{"limits"}, From: made.Revision + 1}
	for event, err := range client.Watch(ctx, options) {
		if err != nil {
			log.Fatal(err)
		}
		for _, change := range event.Changes {
			fmt.Println(change.Type, change.Key, string(change.Data))
		}
		break
	}
	// Output:
	// config_created acme {"plan":"pro","seats":3}
}

func ExampleUnknownOutcomeError() {
	server, client := node()
	defer server.Close()
	defer client.Close()
	ctx := context.Background()

	_, err := client.Upsert(ctx, "limits", "acme", Limits{"pro", 3})
	var unknown *concord.UnknownOutcomeError
	switch {
	case errors.As(err, &unknown):
		// The write may have been applied. The cluster decides both calls as one.
		_, err = client.Upsert(ctx, "limits", "acme", Limits{"pro", 3}, concord.IdempotencyKey(unknown.IdempotencyKey))
		fmt.Println(err)
	case errors.Is(err, concord.ErrNotFound):
		fmt.Println("certainly not applied: there is no such definition")
	}
	// Output:
	// certainly not applied: there is no such definition
}
