//! Cursors: the pages of one state, whatever is written meanwhile and whichever node is asked.

use serde_json::{Value, json};

use super::{DEFINITIONS, Defined, Run, on_leader_and_follower};
use crate::harness::{Answer, Client};

/// The path of the next page.
fn next(answer: &Answer) -> Option<String> {
    let link = answer.headers.get("link")?.to_str().expect("a link is ASCII");
    let path = link.strip_prefix('<').and_then(|rest| rest.strip_suffix(">; rel=\"next\""));
    Some(path.unwrap_or_else(|| panic!("{answer:?}")).to_owned())
}

/// The cursor in a link.
fn cursor(link: &str) -> String {
    link.rsplit_once("cursor=").expect("a link has its cursor last").1.to_owned()
}

/// Twenty configs, some without `n`, with arrays in `tags`.
async fn filled(run: &Run, name: &str) -> Defined {
    let d = run.define(name, &json!(["n", "s", "tags"]), &Value::Null).await;
    for number in 0..20 {
        let mut data = json!({"s": format!("s{}", number % 4), "tags": [number % 3, number % 5, "x"]});
        if number % 5 != 0 {
            data["n"] = json!(number / 2);
        }
        d.create(&format!("k{number:02}"), &data).await.expect(201);
    }
    d
}

/// Follows the links from a first page, on these nodes one after another, with something done before each.
async fn walk(first: Answer, nodes: &[Client], mut meanwhile: impl AsyncFnMut(usize)) -> Vec<Value> {
    let (revision, total) = (first.revision(), first.total());
    let limit = first.data()["meta"]["limit"].clone();
    let mut records = first.data()["results"].as_array().expect("a list").clone();
    let mut link = next(&first);
    for turn in 0_usize.. {
        let Some(path) = link else { break };
        meanwhile(turn).await;
        let page = nodes[turn % nodes.len()].get(&path).await.expect(200);
        assert_eq!((page.revision(), page.total()), (revision, total), "{page:?}");
        let meta = json!({"page": turn + 2, "limit": limit, "total": total});
        assert_eq!(page.data()["meta"], meta, "{page:?}");
        let results = page.data()["results"].as_array().expect("a list");
        assert!(!results.is_empty(), "no link leads to an empty page: {page:?}");
        records.extend(results.iter().cloned());
        link = next(&page);
    }
    records
}

#[tokio::test]
async fn the_pages_are_of_one_state_while_writes_go_on() {
    on_leader_and_follower(async |run: Run| {
        let queries: [&[(&str, &str)]; 9] = [
            &[("sort_by", "config_key"), ("sort_order", "asc")],
            &[],
            &[("sort_by", "created_at")],
            &[("sort_by", "n"), ("sort_order", "asc")],
            &[("sort_by", "n")],
            &[("sort_by", "s"), ("sort_order", "asc")],
            &[("tags", "x"), ("sort_by", "n")],
            &[("n[gte]", "2"), ("s[ne]", "s1"), ("sort_by", "config_key")],
            &[("search", "K1")],
        ];
        for (place, query) in queries.into_iter().enumerate() {
            let d = filled(&run, &format!("d{place}")).await;
            let whole = d.list(query).query(&[("limit", "1000")]).await.expect(200);
            assert!(next(&whole).is_none(), "{whole:?}");
            let first = d.list(query).query(&[("limit", "3")]).await.expect(200);
            let found = walk(first, &run.all(), async |turn| {
                let key = format!("k{:02}", 19 - turn % 20);
                d.put(&key, &json!({"n": 1000 - turn, "s": "changed", "tags": ["x"]})).await.expect(200);
                d.create(&format!("new{turn}"), &json!({"n": turn, "tags": ["x"]})).await.expect(201);
                d.remove(&format!("new{turn}")).await.expect(200);
                d.create(&format!("k1new{turn}"), &json!({"n": turn, "tags": ["x"]})).await.expect(201);
            })
            .await;
            assert_eq!(Value::from(found), whole.data()["results"], "{query:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_list_goes_on_when_its_definition_is_gone() {
    on_leader_and_follower(async |run: Run| {
        let d = filled(&run, "d").await;
        let whole = d.list(&[("limit", "1000")]).await.expect(200);
        let first = d.list(&[("limit", "7")]).await.expect(200);
        run.node.delete(&d.path()).await.expect(200);
        d.list(&[]).await.refused(404, "not_found_error");
        let found = walk(first, &run.all(), async |_| ()).await;
        assert_eq!(Value::from(found), whole.data()["results"]);
    })
    .await;
}

#[tokio::test]
async fn definitions_are_paged_in_the_same_way() {
    on_leader_and_follower(async |run: Run| {
        for name in ["a", "b", "c", "d", "e"] {
            run.define_open(name).await;
        }
        let (prefix, sort) = (run.key(""), [("sort_by", "config_definition_key"), ("sort_order", "asc")]);
        let search = ("search", prefix.as_str());
        let list = |limit: &str| run.node.get(DEFINITIONS).query(&[search, ("limit", limit)]).query(&sort);
        let whole = list("100").await.expect(200);
        assert_eq!(whole.total(), 5, "{whole:?}");
        let first = list("2").await.expect(200);
        let found = walk(first, &run.all(), async |turn| {
            run.define_open(&format!("b{turn}")).await;
        })
        .await;
        assert_eq!(Value::from(found), whole.data()["results"]);
        // Without a condition, too: a page of this state, however many definitions other tests make.
        let first =
            run.node.get(DEFINITIONS).query(&sort).query(&[("limit", "1"), ("page", "2")]).await.expect(200);
        let page = run.others[0].get(&next(&first).expect("there are five")).await.expect(200);
        assert_eq!((page.revision(), page.total()), (first.revision(), first.total()), "{page:?}");
        assert_eq!(page.data()["meta"]["page"], 3, "{page:?}");
    })
    .await;
}

#[tokio::test]
async fn only_a_page_before_another_has_a_link() {
    on_leader_and_follower(async |run: Run| {
        let d = filled(&run, "d").await;
        for (query, has_next) in [
            (&[("limit", "20")][..], false),
            (&[("limit", "19")], true),
            (&[("limit", "10"), ("page", "2")], false),
            (&[("limit", "7"), ("page", "2")], true),
            (&[("page", "9000000000000000000")], false),
            (&[("search", "absent")], false),
        ] {
            let page = d.list(query).await.expect(200);
            assert_eq!(next(&page).is_some(), has_next, "{page:?}");
        }
        let second = d.list(&[("limit", "7"), ("page", "2")]).await;
        let third = run.node.get(&next(&second).expect("asserted above")).await.expect(200);
        assert_eq!(third.config_keys(), d.list(&[("limit", "7"), ("page", "3")]).await.config_keys());
        let item = d.get("k00").await.expect(200);
        assert!(next(&item).is_none(), "{item:?}");
    })
    .await;
}

#[tokio::test]
async fn a_cursor_belongs_to_its_list() {
    on_leader_and_follower(async |run: Run| {
        let (d, other) = (filled(&run, "d").await, filled(&run, "e").await);
        let first = d.list(&[("limit", "3"), ("s", "s1"), ("sort_by", "n")]).await.expect(200);
        let cursor = cursor(&next(&first).expect("five match"));
        let base = [("limit", "3"), ("s", "s1"), ("sort_by", "n")];
        let with = ("cursor", cursor.as_str());
        d.list(&base).query(&[with]).await.expect(200);
        // How fresh the first page had to be, and the order of parameters, mean nothing here.
        d.list(&[with, base[2], base[0], base[1], ("consistency", "local")]).await.expect(200);
        d.list(&base).query(&[with, ("page", "2")]).await.invalid();
        d.list(&[with]).await.invalid();
        d.list(&base[..2]).query(&[with]).await.invalid();
        d.list(&[("limit", "4"), base[1], base[2], with]).await.invalid();
        d.list(&[base[0], ("s", "s2"), base[2], with]).await.invalid();
        d.list(&base).query(&[with, ("sort_order", "asc")]).await.invalid();
        other.list(&base).query(&[with]).await.invalid();
        run.node.get(DEFINITIONS).query(&[base[0], base[2], with]).await.invalid();
        run.node.get(DEFINITIONS).query(&[with]).await.invalid();
    })
    .await;
}

#[tokio::test]
async fn what_is_no_cursor_is_refused() {
    on_leader_and_follower(async |run: Run| {
        let d = filled(&run, "d").await;
        let first = d.list(&[]).await.expect(200);
        let good = cursor(&next(&first).expect("twenty are two pages"));
        let damaged = format!("{}{}", if good.starts_with('B') { 'C' } else { 'B' }, &good[1..]);
        let longer = format!("{good}AAAA");
        for bad in ["x", "null", "%", "AAAAAAAAAAAA", &damaged, &longer, &good[..good.len() - 2]] {
            for path in [DEFINITIONS.to_owned(), d.configs()] {
                let answer = run.node.get(&path).query(&[("cursor", bad)]).await.invalid();
                assert_eq!(answer.body["errors"][0]["loc"], json!(["query", "cursor"]), "{answer:?}");
            }
        }
    })
    .await;
}
