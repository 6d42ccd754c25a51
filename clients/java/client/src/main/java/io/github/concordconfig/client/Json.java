package io.github.concordconfig.client;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadConstraints;
import com.fasterxml.jackson.core.json.JsonWriteFeature;
import com.fasterxml.jackson.databind.DeserializationContext;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonMappingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.MapperFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import com.fasterxml.jackson.databind.SerializerProvider;
import com.fasterxml.jackson.databind.deser.std.StdDeserializer;
import com.fasterxml.jackson.databind.json.JsonMapper;
import com.fasterxml.jackson.databind.module.SimpleModule;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.NullNode;
import com.fasterxml.jackson.databind.node.NumericNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;

/**
 * JSON whose numbers keep all digits, and whose members keep their order.
 *
 * <p>A number with a fraction or an exponent is a {@link BigDecimal}. A number that no class of Java holds, such as
 * {@code 1e1000000000000000000} or {@code -0.0}, is a node with its text.
 *
 * <p><b>Invariant:</b> whatever a node of the cluster stores can be read, and what is read and written back has the same
 * numbers. {@code NaN} and infinities are rejected with their place.
 */
final class Json {
    @SuppressWarnings("deprecation") // Without it, a tree drops zeros at the end of a decimal.
    static final JsonNodeFactory NODES = JsonNodeFactory.withExactBigDecimals(true);
    /** From this length on, a number stays a text: to convert it would take quadratic time. */
    private static final int DIGITS_MAX = 10_000;
    private static final Pattern NUMBER = Pattern.compile("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?");

    /** Makes any mapper read exact trees. */
    private static final SimpleModule EXACT =
            new SimpleModule("concord-exact").addDeserializer(JsonNode.class, new TreeReader());

    private static final ObjectMapper TREES = exact(JsonMapper.builder(JsonFactory.builder()
                    .streamReadConstraints(StreamReadConstraints.builder()
                            .maxNumberLength(Integer.MAX_VALUE)
                            .maxStringLength(Integer.MAX_VALUE)
                            .maxNameLength(Integer.MAX_VALUE)
                            .build())
                    .enable(JsonWriteFeature.COMBINE_UNICODE_SURROGATES_IN_UTF8)
                    .build())
            .enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS)
            .build());

    /**
     * Reads and writes the program's types. A primitive field must be there, and a text is no number: a default or a
     * conversion would hide that data do not fit.
     */
    static final ObjectMapper MODELS = exact(JsonMapper.builder()
            .findAndAddModules()
            .disable(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES, DeserializationFeature.ACCEPT_FLOAT_AS_INT)
            .enable(DeserializationFeature.FAIL_ON_NULL_FOR_PRIMITIVES)
            .enable(DeserializationFeature.USE_BIG_DECIMAL_FOR_FLOATS)
            .disable(MapperFeature.ALLOW_COERCION_OF_SCALARS)
            .disable(SerializationFeature.WRITE_DATES_AS_TIMESTAMPS, SerializationFeature.WRITE_DURATIONS_AS_TIMESTAMPS)
            .build());

    private Json() {}

    /** The mapper, which keeps all digits in trees. */
    static ObjectMapper exact(ObjectMapper mapper) {
        return mapper.registerModule(EXACT).setNodeFactory(NODES);
    }

    static JsonNode parse(byte[] text) throws IOException {
        JsonNode found = TREES.readTree(text);
        if (found.isMissingNode()) {
            throw new IOException("there is no JSON");
        }
        return found;
    }

    static byte[] bytes(JsonNode data) {
        check(data, List.of());
        try {
            return TREES.writeValueAsBytes(data);
        } catch (JsonProcessingException error) {
            throw new IllegalArgumentException("the data are no JSON: " + error.getOriginalMessage(), error);
        }
    }

    /** The data as a node returns them: the classes of numbers are those of {@link #parse}. */
    static JsonNode reread(JsonNode data) {
        try {
            return parse(bytes(data));
        } catch (IOException error) {
            throw new IllegalArgumentException("the data are no JSON", error);
        }
    }

    static ObjectNode object() {
        return NODES.objectNode();
    }

    static JsonNode texts(Iterable<String> texts) {
        ArrayNode made = NODES.arrayNode();
        texts.forEach(made::add);
        return made;
    }

    /** The JSON of a value of the program. */
    static JsonNode of(Object value, ObjectMapper models) {
        if (value == null) {
            return NullNode.getInstance();
        }
        return value instanceof JsonNode node ? node : models.valueToTree(value);
    }

    /** The data as an instance of a type. */
    static <T> T to(Class<T> type, JsonNode data, ObjectMapper models) {
        try {
            T made = models.treeToValue(data, type);
            if (made == null) {
                throw new ModelException("the data are null", List.of(""), null);
            }
            return made;
        } catch (ModelException | OutOfMemoryError error) {
            throw error;
        } catch (JsonMappingException error) {
            List<String> way = new ArrayList<>();
            for (JsonMappingException.Reference each : error.getPath()) {
                way.add(each.getFieldName() == null ? String.valueOf(each.getIndex()) : each.getFieldName());
            }
            String place = pointer(way);
            String text = type.getSimpleName() + ": " + (place.isEmpty() ? "" : place + ": ") + error.getOriginalMessage();
            throw new ModelException(text, List.of(place), error);
        } catch (Throwable error) {
            // The constructor of the program's type may throw anything.
            throw new ModelException(type.getSimpleName() + ": " + error.getClass().getName(), List.of(), error);
        }
    }

    static String pointer(Iterable<String> way) {
        StringBuilder made = new StringBuilder();
        way.forEach(part -> made.append('/').append(part.replace("~", "~0").replace("/", "~1")));
        return made.toString();
    }

    /** The same data in containers that can't be changed. {@link JsonNode#deepCopy} makes a copy that can. */
    static JsonNode frozen(JsonNode data) {
        if (data instanceof ObjectNode object) {
            Map<String, JsonNode> members = new LinkedHashMap<>();
            object.properties().forEach(each -> members.put(each.getKey(), frozen(each.getValue())));
            return new ObjectNode(NODES, Collections.unmodifiableMap(members));
        }
        if (data instanceof ArrayNode array) {
            List<JsonNode> elements = new ArrayList<>(array.size());
            array.forEach(each -> elements.add(frozen(each)));
            return new ArrayNode(NODES, Collections.unmodifiableList(elements));
        }
        return data;
    }

    /** Rejects numbers that JSON does not have. A generator would write them as texts. */
    private static void check(JsonNode data, List<String> way) {
        if (data.isObject()) {
            data.properties().forEach(each -> check(each.getValue(), with(way, each.getKey())));
        } else if (data.isArray()) {
            for (int n = 0; n < data.size(); n++) {
                check(data.get(n), with(way, String.valueOf(n)));
            }
        } else if ((data.isDouble() || data.isFloat()) && !Double.isFinite(data.doubleValue())) {
            throw new IllegalArgumentException(pointer(way) + ": " + data.doubleValue() + " is no JSON");
        }
    }

    static List<String> with(List<String> way, String part) {
        List<String> longer = new ArrayList<>(way);
        longer.add(part);
        return longer;
    }

    private static JsonNode number(String text) {
        boolean isNegativeZero = text.startsWith("-0") && text.matches("-0(\\.0+)?([eE].*)?");
        if (!isNegativeZero && text.length() <= DIGITS_MAX) {
            try {
                if (text.chars().anyMatch(c -> c == '.' || c == 'e' || c == 'E')) {
                    return NODES.numberNode(new BigDecimal(text));
                }
                if (text.length() > 18) {
                    return NODES.numberNode(new BigInteger(text));
                }
                long value = Long.parseLong(text);
                return value == (int) value ? NODES.numberNode((int) value) : NODES.numberNode(value);
            } catch (NumberFormatException error) {
                // Its exponent has too many digits.
            }
        }
        if (!NUMBER.matcher(text).matches()) {
            throw new IllegalArgumentException(text + " is no JSON");
        }
        return new ExactNumberNode(text);
    }

    private static final class TreeReader extends StdDeserializer<JsonNode> {
        private TreeReader() {
            super(JsonNode.class);
        }

        @Override
        public JsonNode deserialize(JsonParser parser, DeserializationContext context) throws IOException {
            return tree(parser, context);
        }

        private JsonNode tree(JsonParser parser, DeserializationContext context) throws IOException {
            switch (parser.currentToken()) {
                case START_OBJECT, FIELD_NAME:
                    ObjectNode object = object();
                    if (parser.currentToken() == JsonToken.START_OBJECT) {
                        parser.nextToken();
                    }
                    while (parser.currentToken() == JsonToken.FIELD_NAME) {
                        String name = parser.currentName();
                        parser.nextToken();
                        object.set(name, tree(parser, context));
                        parser.nextToken();
                    }
                    return object;
                case START_ARRAY:
                    ArrayNode array = NODES.arrayNode();
                    while (parser.nextToken() != JsonToken.END_ARRAY) {
                        array.add(tree(parser, context));
                    }
                    return array;
                case VALUE_STRING:
                    return NODES.textNode(parser.getText());
                case VALUE_NUMBER_INT, VALUE_NUMBER_FLOAT:
                    return number(parser.getText());
                case VALUE_TRUE, VALUE_FALSE:
                    return NODES.booleanNode(parser.currentToken() == JsonToken.VALUE_TRUE);
                case VALUE_NULL:
                    return NODES.nullNode();
                case VALUE_EMBEDDED_OBJECT:
                    Object embedded = parser.getEmbeddedObject();
                    return embedded instanceof byte[] bytes ? NODES.binaryNode(bytes) : NODES.pojoNode(embedded);
                default:
                    return (JsonNode) context.handleUnexpectedToken(JsonNode.class, parser);
            }
        }

        @Override
        public JsonNode getNullValue(DeserializationContext context) {
            return NODES.nullNode();
        }
    }

    /** A number that no class of Java holds with its value and its sign, as its text. */
    private static final class ExactNumberNode extends NumericNode {
        private final String text;

        private ExactNumberNode(String text) {
            this.text = text;
        }

        /** Its {@code toString} is the text, which is what a parser over a tree shows. */
        @Override
        public Number numberValue() {
            return new TextNumber(text);
        }

        @Override
        public JsonParser.NumberType numberType() {
            return JsonParser.NumberType.BIG_DECIMAL;
        }

        @Override
        public JsonToken asToken() {
            return JsonToken.VALUE_NUMBER_FLOAT;
        }

        @Override
        public int intValue() {
            return (int) doubleValue();
        }

        @Override
        public long longValue() {
            return (long) doubleValue();
        }

        @Override
        public double doubleValue() {
            return Double.parseDouble(text);
        }

        @Override
        public BigDecimal decimalValue() {
            return new BigDecimal(text);
        }

        @Override
        public BigInteger bigIntegerValue() {
            return decimalValue().toBigInteger();
        }

        @Override
        public boolean canConvertToInt() {
            return false;
        }

        @Override
        public boolean canConvertToLong() {
            return false;
        }

        @Override
        public String asText() {
            return text;
        }

        @Override
        public void serialize(JsonGenerator generator, SerializerProvider provider) throws IOException {
            generator.writeNumber(text);
        }

        @Override
        public boolean equals(Object other) {
            return other instanceof ExactNumberNode node && plain(node.text).equals(plain(text));
        }

        @Override
        public int hashCode() {
            return plain(text).hashCode();
        }

        private static String plain(String text) {
            return text.replace('E', 'e').replace("+", "");
        }
    }

    private static final class TextNumber extends Number {
        private final String text;

        private TextNumber(String text) {
            this.text = text;
        }

        @Override
        public int intValue() {
            return (int) doubleValue();
        }

        @Override
        public long longValue() {
            return (long) doubleValue();
        }

        @Override
        public float floatValue() {
            return (float) doubleValue();
        }

        @Override
        public double doubleValue() {
            return Double.parseDouble(text);
        }

        @Override
        public String toString() {
            return text;
        }
    }
}
