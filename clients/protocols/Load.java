import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Properties;
import java.util.TreeSet;

/** Reads properties from stdin as Java does, as bytes and as UTF-8, and prints each name and value in base64. */
public class Load {
    public static void main(String[] args) throws IOException {
        byte[] text = System.in.readAllBytes();
        Properties bytes = new Properties();
        bytes.load(new ByteArrayInputStream(text));
        Properties characters = new Properties();
        try (Reader reader = new InputStreamReader(new ByteArrayInputStream(text), StandardCharsets.UTF_8)) {
            characters.load(reader);
        }
        if (!bytes.equals(characters)) {
            throw new IOException("as bytes: " + bytes + "\nas UTF-8: " + characters);
        }
        for (String name : new TreeSet<>(bytes.stringPropertyNames())) {
            System.out.println(base64(name) + " " + base64(bytes.getProperty(name)));
        }
    }

    private static String base64(String text) {
        return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }
}
