import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.context.event.ApplicationReadyEvent;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.cloud.context.config.annotation.RefreshScope;
import org.springframework.context.annotation.Import;
import org.springframework.context.event.EventListener;
import org.springframework.core.env.Environment;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;

/** A service whose properties come from where its arguments say. It shows them, as check.py asks. */
@SpringBootConfiguration
@EnableAutoConfiguration
@EnableConfigurationProperties(Service.Shop.class)
@Import({Service.Greeter.class, Service.Pages.class})
public class Service {
    public static void main(String[] args) {
        SpringApplication.run(Service.class, args);
    }

    @RestController
    static class Pages {
        private final Shop shop;
        private final Greeter greeter;
        private final Environment environment;

        Pages(Shop shop, Greeter greeter, Environment environment) {
            this.shop = shop;
            this.greeter = greeter;
            this.environment = environment;
        }

        @EventListener(ApplicationReadyEvent.class)
        void ready() {
            System.out.println("{\"port\": " + environment.getProperty("local.server.port") + "}");
        }

        /** The bound properties. */
        @GetMapping("/shop")
        Map<String, Object> shop() {
            Map<String, Object> found = new LinkedHashMap<>();
            found.put("greeting", shop.greeting);
            found.put("hosts", shop.hosts);
            found.put("tags", shop.tags);
            found.put("limits", shop.limits);
            found.put("servers", shop.servers);
            return found;
        }

        /** The value of the bean that a refresh makes anew. */
        @GetMapping("/greeting")
        String greeting() {
            return greeter.greeting();
        }

        /** Properties by their names. */
        @GetMapping("/properties")
        Map<String, String> properties(@RequestParam("names") List<String> names) {
            Map<String, String> found = new LinkedHashMap<>();
            names.forEach(name -> found.put(name, environment.getProperty(name)));
            return found;
        }
    }

    @RefreshScope
    static class Greeter {
        @Value("${shop.greeting}")
        private String greeting;

        String greeting() {
            return greeting;
        }
    }

    public record Limits(int seats, double ratio, boolean open) {}

    public record Server(String host, int port) {}

    @ConfigurationProperties("shop")
    public static class Shop {
        private String greeting;
        private Limits limits;
        private List<String> hosts = List.of();
        private List<String> tags = List.of("unset");
        private List<Server> servers = List.of();

        public void setGreeting(String greeting) {
            this.greeting = greeting;
        }

        public void setLimits(Limits limits) {
            this.limits = limits;
        }

        public void setHosts(List<String> hosts) {
            this.hosts = hosts;
        }

        public void setTags(List<String> tags) {
            this.tags = tags;
        }

        public void setServers(List<Server> servers) {
            this.servers = servers;
        }
    }
}
