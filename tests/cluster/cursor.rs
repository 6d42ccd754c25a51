//! A cursor ends with the node that made it, and its caller gets an error that says so.

use serde_json::json;

use crate::harness::{
    Answer, Client, Cluster,
    load::{define, definition},
};

/// The path of the next page.
fn next(page: &Answer) -> String {
    let link = page.header("link").strip_prefix('<').and_then(|link| link.split_once('>'));
    link.unwrap_or_else(|| panic!("{page:?}")).0.to_owned()
}

#[tokio::test]
async fn a_cursor_expires_with_its_node() {
    let mut cluster = Cluster::start("cursor").await;
    let leader = cluster.leader().await;
    let holder = leader % 3 + 1;
    let [made_it, another] = [holder, leader].map(|id| cluster.client(id));
    define(&another, "d").await;
    let configs = format!("{}/config/", definition("d"));
    for n in 0..5 {
        let body = json!({"config_key": format!("k{n}"), "data": {"n": n}});
        let create = another.post(&configs, &body).header("idempotency-key", &format!("k{n}"));
        create.insist().await.expect(201);
    }
    let query = [("limit", "2"), ("sort_by", "config_key"), ("sort_order", "asc")];
    let first = made_it.get(&configs).query(&query).insist().await.expect(200);
    let path = next(&first);
    for node in cluster.clients() {
        let page = node.get(&path).insist().await.expect(200);
        assert_eq!(page.config_keys(), ["k2", "k3"], "{page:?}");
        assert_eq!(page.revision(), first.revision(), "{page:?}");
    }
    let expired = async |node: &Client| node.get(&path).insist().await.refused(410, "expired_error");
    cluster.node(holder).kill();
    expired(&another).await;
    cluster.node(holder).start().await;
    cluster.ready().await;
    expired(&made_it).await;
    expired(&another).await;
    let again = made_it.get(&configs).query(&query).insist().await.expect(200);
    another.get(&next(&again)).insist().await.expect(200);
}
