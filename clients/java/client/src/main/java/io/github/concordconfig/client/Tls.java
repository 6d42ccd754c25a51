package io.github.concordconfig.client;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.InvalidKeySpecException;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;
import java.util.Collection;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;

/** TLS by PEM files, as the other clients and the command line take them. */
final class Tls {
    private static final Pattern KEY =
            Pattern.compile("-----BEGIN PRIVATE KEY-----([^-]*)-----END PRIVATE KEY-----", Pattern.DOTALL);

    private Tls() {}

    static SSLContext of(Path caFile, Path certificateFile, Path keyFile) {
        try {
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(keys(certificateFile, keyFile), trusted(caFile), null);
            return context;
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        } catch (GeneralSecurityException error) {
            throw new IllegalArgumentException("the files for TLS can't be used: " + error.getMessage(), error);
        }
    }

    private static TrustManager[] trusted(Path caFile) throws IOException, GeneralSecurityException {
        if (caFile == null) {
            return null;
        }
        KeyStore store = empty();
        for (Certificate each : certificates(caFile)) {
            store.setCertificateEntry(String.valueOf(store.size()), each);
        }
        TrustManagerFactory factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        factory.init(store);
        return factory.getTrustManagers();
    }

    private static KeyManager[] keys(Path certificateFile, Path keyFile) throws IOException, GeneralSecurityException {
        if (certificateFile == null) {
            return null;
        }
        KeyStore store = empty();
        Certificate[] chain = certificates(certificateFile).toArray(new Certificate[0]);
        store.setKeyEntry("client", privateKey(keyFile == null ? certificateFile : keyFile), new char[0], chain);
        KeyManagerFactory factory = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        factory.init(store, new char[0]);
        return factory.getKeyManagers();
    }

    private static KeyStore empty() throws IOException, GeneralSecurityException {
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        return store;
    }

    private static Collection<? extends Certificate> certificates(Path file) throws IOException, GeneralSecurityException {
        try (InputStream in = Files.newInputStream(file)) {
            Collection<? extends Certificate> found = CertificateFactory.getInstance("X.509").generateCertificates(in);
            if (found.isEmpty()) {
                throw new IllegalArgumentException(file + " has no certificate");
            }
            return found;
        }
    }

    private static PrivateKey privateKey(Path file) throws IOException, GeneralSecurityException {
        Matcher found = KEY.matcher(Files.readString(file, StandardCharsets.US_ASCII));
        if (!found.find()) {
            throw new IllegalArgumentException(
                    file + " has no private key in PKCS #8 (`openssl pkcs8 -topk8 -nodes` makes one of other formats)");
        }
        byte[] bytes = Base64.getMimeDecoder().decode(found.group(1));
        for (String algorithm : List.of("EC", "RSA", "EdDSA")) {
            try {
                return KeyFactory.getInstance(algorithm).generatePrivate(new PKCS8EncodedKeySpec(bytes));
            } catch (InvalidKeySpecException error) {
                // It is of another kind.
                continue;
            }
        }
        throw new IllegalArgumentException(file + " has a private key of an unknown kind");
    }
}
