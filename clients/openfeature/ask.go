// Evaluates flags with the OpenFeature SDK and the OFREP provider for Go, as check.py asks.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"log"
	"os"

	"github.com/open-feature/go-sdk-contrib/providers/ofrep"
	"github.com/open-feature/go-sdk/openfeature"
)

type question struct {
	Flag    string
	Type    string
	Default any
	Context map[string]any
}

type reply struct {
	Value   any                   `json:"value"`
	Variant string                `json:"variant"`
	Reason  openfeature.Reason    `json:"reason"`
	Error   openfeature.ErrorCode `json:"error"`
}

func main() {
	provider := ofrep.NewProvider(os.Getenv("OFREP_ENDPOINT"), ofrep.WithBearerToken(os.Getenv("CONCORD_API_KEY")))
	if err := openfeature.SetProviderAndWait(provider); err != nil {
		log.Fatal(err)
	}
	client := openfeature.NewDefaultClient()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var asked question
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			log.Fatal(err)
		}
		if err := json.NewEncoder(os.Stdout).Encode(answer(client, asked)); err != nil {
			log.Fatal(err)
		}
	}
}

// The error of an evaluation is in its details too.
func answer(client *openfeature.Client, asked question) reply {
	key, _ := asked.Context["targetingKey"].(string)
	delete(asked.Context, "targetingKey")
	reader := openfeature.NewEvaluationContext(key, asked.Context)
	ctx := context.Background()
	switch asked.Type {
	case "boolean":
		found, _ := client.BooleanValueDetails(ctx, asked.Flag, asked.Default.(bool), reader)
		return reply{found.Value, found.Variant, found.Reason, found.ErrorCode}
	case "string":
		found, _ := client.StringValueDetails(ctx, asked.Flag, asked.Default.(string), reader)
		return reply{found.Value, found.Variant, found.Reason, found.ErrorCode}
	case "integer":
		found, _ := client.IntValueDetails(ctx, asked.Flag, int64(asked.Default.(float64)), reader)
		return reply{found.Value, found.Variant, found.Reason, found.ErrorCode}
	case "float":
		found, _ := client.FloatValueDetails(ctx, asked.Flag, asked.Default.(float64), reader)
		return reply{found.Value, found.Variant, found.Reason, found.ErrorCode}
	default:
		found, _ := client.ObjectValueDetails(ctx, asked.Flag, asked.Default, reader)
		return reply{found.Value, found.Variant, found.Reason, found.ErrorCode}
	}
}
