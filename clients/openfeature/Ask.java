import com.fasterxml.jackson.databind.ObjectMapper;
import com.google.common.collect.ImmutableList;
import com.google.common.collect.ImmutableMap;
import dev.openfeature.contrib.providers.ofrep.OfrepProvider;
import dev.openfeature.contrib.providers.ofrep.OfrepProviderOptions;
import dev.openfeature.sdk.Client;
import dev.openfeature.sdk.EvaluationContext;
import dev.openfeature.sdk.FlagEvaluationDetails;
import dev.openfeature.sdk.ImmutableContext;
import dev.openfeature.sdk.OpenFeatureAPI;
import dev.openfeature.sdk.Structure;
import dev.openfeature.sdk.Value;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/** Evaluates flags with the OpenFeature SDK and the OFREP provider for Java, as check.py asks. */
public class Ask {
    private static final ObjectMapper JSON = new ObjectMapper();

    @SuppressWarnings("unchecked")
    public static void main(String[] args) throws Exception {
        String bearer = "Bearer " + System.getenv("CONCORD_API_KEY");
        OpenFeatureAPI.getInstance().setProviderAndWait(OfrepProvider.constructProvider(OfrepProviderOptions.builder()
                .baseUrl(System.getenv("OFREP_ENDPOINT"))
                .headers(ImmutableMap.of("Authorization", ImmutableList.of(bearer)))
                .build()));
        Client client = OpenFeatureAPI.getInstance().getClient();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Object> asked = JSON.readValue(line, Map.class);
            FlagEvaluationDetails<?> found = ask(client, asked);
            Map<String, Object> reply = new LinkedHashMap<>();
            reply.put("value", found.getValue() instanceof Value ? plain((Value) found.getValue()) : found.getValue());
            reply.put("variant", found.getVariant());
            reply.put("reason", found.getReason());
            reply.put("error", found.getErrorCode());
            System.out.println(JSON.writeValueAsString(reply));
        }
        // The threads of the provider would keep the program alive.
        System.exit(0);
    }

    private static FlagEvaluationDetails<?> ask(Client client, Map<String, Object> asked) throws Exception {
        String flag = (String) asked.get("flag");
        Object fallback = asked.get("default");
        EvaluationContext context = context((Map<?, ?>) asked.get("context"));
        switch ((String) asked.get("type")) {
            case "boolean": return client.getBooleanDetails(flag, (Boolean) fallback, context);
            case "string": return client.getStringDetails(flag, (String) fallback, context);
            case "integer": return client.getIntegerDetails(flag, (Integer) fallback, context);
            case "float": return client.getDoubleDetails(flag, (Double) fallback, context);
            default: return client.getObjectDetails(flag, Value.objectToValue(fallback), context);
        }
    }

    private static EvaluationContext context(Map<?, ?> members) {
        Map<String, Value> attributes = new HashMap<>();
        members.forEach((name, value) -> attributes.put((String) name, Value.objectToValue(value)));
        Value key = attributes.remove("targetingKey");
        return key == null ? new ImmutableContext(attributes) : new ImmutableContext(key.asString(), attributes);
    }

    private static Object plain(Value value) {
        if (value.isStructure()) {
            Structure members = value.asStructure();
            Map<String, Object> found = new LinkedHashMap<>();
            members.asMap().forEach((name, member) -> found.put(name, plain(member)));
            return found;
        }
        if (value.isList()) {
            List<Value> items = value.asList();
            return items.stream().map(Ask::plain).collect(Collectors.toList());
        }
        return value.asObject();
    }
}
