// A batch, a list with a filter and a 404, by the Java client that OpenAPI Generator makes.
// scripts/openapi-test.sh runs it with the classes of the client.

import java.net.URI;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.openapitools.client.ApiClient;
import org.openapitools.client.ApiException;
import org.openapitools.client.api.BatchApi;
import org.openapitools.client.api.ClusterApi;
import org.openapitools.client.api.ConfigsApi;
import org.openapitools.client.model.Batch;
import org.openapitools.client.model.BatchOperation;
import org.openapitools.client.model.BatchResult;
import org.openapitools.client.model.ConfigRecord;
import org.openapitools.client.model.CreateConfigOperation;
import org.openapitools.client.model.CreateDefinitionOperation;
import org.openapitools.client.model.NotFoundError;
import org.openapitools.client.model.PatchConfigOperation;
import org.openapitools.client.model.PlainBatch;

class Program {
    static final String DEFINITION = "generated-java";

    public static void main(String[] args) throws Exception {
        ApiClient client = client(null);
        ConfigsApi configs = new ConfigsApi(client);

        Batch batch = new Batch(new PlainBatch().operations(List.of(
                new BatchOperation(new CreateDefinitionOperation()
                        .op(CreateDefinitionOperation.OpEnum.CREATE_DEFINITION)
                        .configDefinitionKey(DEFINITION)
                        .addIndexesItem("port")),
                new BatchOperation(config("http", 80)),
                new BatchOperation(config("https", 80)),
                new BatchOperation(new PatchConfigOperation()
                        .op(PatchConfigOperation.OpEnum.PATCH_CONFIG)
                        .configDefinitionKey(DEFINITION)
                        .configKey("https")
                        .patch(Map.of("port", 443))))));
        var done = new BatchApi(client).runBatch(
                BatchApi.APIRunBatchRequest.newBuilder().batch(batch).idempotencyKey("generated-java-1").build());
        List<BatchResult> results = done.getData().getResults();
        check(results.size() == 4 && results.get(2).getCreated() && !results.get(3).getCreated(), results);
        check(done.getData().getRevision() != null, done);

        var list = ConfigsApi.APIListConfigsRequest.newBuilder().configDefinitionKey(DEFINITION).build();
        var page = new ConfigsApi(client("port%5Bgte%5D=100")).listConfigs(list).getData();
        List<ConfigRecord> found = page.getResults();
        check(page.getMeta().getTotal() == 1 && found.size() == 1, page);
        check(found.get(0).getConfigKey().equals("https") && Objects.equals(found.get(0).getData(), Map.of("port", 443)), found);

        var missing = ConfigsApi.APIReadConfigRequest.newBuilder().configDefinitionKey(DEFINITION).configKey("missing").build();
        try {
            check(false, configs.readConfig(missing));
        } catch (ApiException failure) {
            check(failure.getCode() == 404, failure);
            NotFoundError refusal = client.getObjectMapper().readValue(failure.getResponseBody(), NotFoundError.class);
            check(refusal.getErrors().get(0).getCode().getValue().equals("config_not_found"), refusal);
        }

        // Figures that need more than 32 bits.
        var cluster = new ClusterApi(client).getCluster(ClusterApi.APIGetClusterRequest.newBuilder().build()).getData();
        check(cluster.getMembers().size() == 1, cluster);
        System.out.println("java: a batch, a list with a filter, a 404, the cluster");
    }

    /** A client that adds a query to each request. The generated methods send all filters as one parameter. */
    static ApiClient client(String query) {
        ApiClient client = new ApiClient();
        client.updateBaseUri(System.getenv("CONCORD_URL"));
        client.setRequestInterceptor(request -> {
            request.header("Authorization", "Bearer " + System.getenv("CONCORD_API_KEY"));
            if (query != null) {
                URI uri = request.copy().build().uri();
                request.uri(URI.create(uri + (uri.getRawQuery() == null ? "?" : "&") + query));
            }
        });
        return client;
    }

    static CreateConfigOperation config(String key, int port) {
        return new CreateConfigOperation()
                .op(CreateConfigOperation.OpEnum.CREATE_CONFIG)
                .configDefinitionKey(DEFINITION)
                .configKey(key)
                .data(Map.of("port", port));
    }

    static void check(boolean holds, Object seen) {
        if (!holds) {
            throw new AssertionError(seen);
        }
    }
}
