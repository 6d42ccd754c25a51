//! An agent of one environment: the settings have keys without it, and nothing comes from another one.

use serde_json::json;

use super::Agent;
use crate::harness::{Cluster, check, eventually};

const FILES: &str = r#"files:
  - {path: limits.json, definition: limits, config: acme}
  - path: all.txt
    template_text: "{% for key, data in configs.limits|items %}{{ key }} {{ data.n }};{% endfor %}"
    debounce_ms: 50
"#;

async fn create(cluster: &Cluster, definition: &str, n: u64) {
    let node = cluster.client(1);
    let path = "/api/v1/config_definition/";
    node.post(path, &json!({"config_definition_key": definition, "indexes": []})).await.expect(201);
    let config = json!({"config_key": "acme", "data": {"n": n}});
    node.post(&format!("{path}{definition}/config/"), &config).await.expect(201);
}

#[tokio::test]
async fn an_agent_has_the_configs_of_its_environment_and_of_no_other() {
    let mut cluster = Cluster::start("agent-environment").await;
    for (definition, n) in [("limits", 1), ("staging.limits", 2), ("prod.limits", 3)] {
        create(&cluster, definition, n).await;
    }
    let mut agent = Agent::new(&cluster, FILES);
    agent.environment = Some("staging");
    agent.start();
    agent.has("all.txt", "acme 2;").await;
    agent.has("limits.json", "{\n  \"n\": 2\n}\n").await;
    let path = "/api/v1/config_definition/limits/config/acme";
    let (status, _, body) = agent.get(path).await.unwrap();
    assert_eq!((status, &body["data"]["data"]), (200, &json!({"n": 2})));
    agent.stop().await;

    // With the same data directory, another environment takes nothing from the file, and changes nothing without nodes.
    cluster.kill_all();
    agent.environment = Some("prod");
    agent.write("log.txt", "");
    agent.start();
    agent.logs("no configs from the cluster yet").await;
    assert_eq!(agent.get(path).await.unwrap().0, 503);
    assert_eq!(agent.read("all.txt"), "acme 2;");
    agent.stop().await;
    agent.environment = Some("staging");
    agent.start();
    eventually("the last-known-good file is used", async || {
        let (status, ..) = agent.get(path).await?;
        check(status == 200, || status.to_string())
    })
    .await;
    agent.stop().await;
    cluster.start_all().await;
    agent.environment = Some("prod");
    agent.start();
    agent.has("all.txt", "acme 3;").await;
}
