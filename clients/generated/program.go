// A batch, a list with a filter and a 404, by the Go client that OpenAPI Generator makes.
// scripts/openapi-test.sh puts it beside the client.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	concord "example.com/example/concord"
)

const definition = "generated-go"

func main() {
	log.SetFlags(0)
	configuration := concord.NewConfiguration()
	configuration.Servers = concord.ServerConfigurations{{URL: os.Getenv("CONCORD_URL")}}
	client := concord.NewAPIClient(configuration)
	ctx := context.WithValue(context.Background(), concord.ContextAccessToken, os.Getenv("CONCORD_API_KEY"))

	created := concord.NewCreateDefinitionOperation(definition, "create_definition")
	created.SetIndexes([]string{"port"})
	http := concord.NewCreateConfigOperation(definition, "http", map[string]any{"port": 80}, "create_config")
	https := concord.NewCreateConfigOperation(definition, "https", map[string]any{"port": 80}, "create_config")
	patched := concord.NewPatchConfigOperation(definition, "https", "patch_config", map[string]any{"port": 443})
	batch := concord.PlainBatchAsBatch(concord.NewPlainBatch([]concord.BatchOperation{
		concord.CreateDefinitionOperationAsBatchOperation(created),
		concord.CreateConfigOperationAsBatchOperation(http),
		concord.CreateConfigOperationAsBatchOperation(https),
		concord.PatchConfigOperationAsBatchOperation(patched),
	}))
	done, _, err := client.BatchAPI.RunBatch(ctx).Batch(batch).IdempotencyKey("generated-go-1").Execute()
	if err != nil {
		log.Fatalf("the batch: %v", err)
	}
	results := done.Data.Results
	if len(results) != 4 || results[3].Op != "patch_config" || results[3].Created || !results[2].Created {
		log.Fatalf("the results of the batch: %+v", results)
	}
	if done.Data.Revision.Get() == nil {
		log.Fatal("the batch has no revision")
	}

	list := client.ConfigsAPI.ListConfigs(ctx, definition).Include("revision")
	page, _, err := list.Filters(map[string]string{"port[gte]": "100"}).Execute()
	if err != nil {
		log.Fatalf("the list: %v", err)
	}
	found := page.Data.Results
	if page.Data.Meta.Total != 1 || len(found) != 1 || found[0].ConfigKey != "https" || found[0].Data["port"] != 443.0 {
		log.Fatalf("the list has: %+v", page.Data)
	}
	if found[0].GetRevision() != *done.Data.Revision.Get() {
		log.Fatalf("the config has the revision %d", found[0].GetRevision())
	}

	_, response, err := client.ConfigsAPI.ReadConfig(ctx, definition, "missing").Execute()
	var failure *concord.GenericOpenAPIError
	if !errors.As(err, &failure) || response.StatusCode != 404 {
		log.Fatalf("a missing config: %v", err)
	}
	refusal, ok := failure.Model().(concord.NotFoundError)
	if !ok || refusal.Errors[0].Type != "not_found_error" || refusal.Errors[0].Code != "config_not_found" {
		log.Fatalf("the body of the 404: %+v", failure.Model())
	}

	// Figures that need more than 32 bits.
	cluster, _, err := client.ClusterAPI.GetCluster(ctx).Execute()
	if err != nil || len(cluster.Data.Members) != 1 || cluster.Data.Members[0].Id != 1 {
		log.Fatalf("the cluster: %+v, %v", cluster, err)
	}
	fmt.Println("go: a batch, a list with a filter, a 404, the cluster")
}
