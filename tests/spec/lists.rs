//! Both lists: defaults, page and limit, search, totals, deep pages. Sorting by fields is `sorting`'s.

use serde_json::{Value, json};

use super::{DEFINITIONS, Defined, Run, on_leader_and_follower};
use crate::harness::{Call, Client};

/// Both lists of a run: the definitions that its search finds, and a definition's configs.
async fn lists(run: &Run) -> (Defined, [Box<dyn Fn(&[(&str, &str)]) -> Call>; 2]) {
    let d = run.define_open("list").await;
    let (prefix, node, one) = (run.key(""), run.node.clone(), d.clone());
    let definitions = move |query: &[(&str, &str)]| {
        node.get(DEFINITIONS).query(&[("search", prefix.as_str())]).query(query)
    };
    let configs = move |query: &[(&str, &str)]| one.list(query);
    (d, [Box::new(definitions), Box::new(configs)])
}

#[tokio::test]
async fn a_list_shows_ten_records_the_newest_change_first() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        for n in 0..12 {
            d.create(&format!("k{n:02}"), &json!({})).await.expect(201);
        }
        d.put("k05", &json!({})).await.expect(200);
        let answer = d.list(&[]).await.expect(200);
        let expected = ["k05", "k11", "k10", "k09", "k08", "k07", "k06", "k04", "k03", "k02"];
        assert_eq!(answer.config_keys(), expected);
        assert_eq!(answer.data()["meta"], json!({"page": 1, "limit": 10, "total": 12}));
        let second = d.list(&[("page", "2")]).await;
        assert_eq!(second.config_keys(), ["k01", "k00"]);
        assert_eq!(second.data()["meta"], json!({"page": 2, "limit": 10, "total": 12}));
    })
    .await;
}

#[tokio::test]
async fn definitions_are_listed_newest_change_first_too() {
    on_leader_and_follower(async |run: Run| {
        for name in ["a", "b", "c"] {
            run.define_open(name).await;
        }
        let a = format!("{DEFINITIONS}{}", run.key("a"));
        run.node.put(&a, &json!({"indexes": []})).await.expect(200);
        let prefix = run.key("");
        let list =
            |query: &[(&str, &str)]| run.node.get(DEFINITIONS).query(&[("search", &*prefix)]).query(query);
        let keys = |names: [&str; 3]| names.map(|name| run.key(name));
        let name = "config_definition_key";
        assert_eq!(list(&[]).await.keys_of(name), keys(["a", "c", "b"]));
        assert_eq!(list(&[("sort_order", "asc")]).await.keys_of(name), keys(["b", "c", "a"]));
        assert_eq!(list(&[("sort_by", "created_at")]).await.keys_of(name), keys(["c", "b", "a"]));
        let by_key = [("sort_by", name), ("sort_order", "asc")];
        assert_eq!(list(&by_key).await.keys_of(name), keys(["a", "b", "c"]));
        assert_eq!(list(&[("sort_by", name)]).await.keys_of(name), keys(["c", "b", "a"]));
    })
    .await;
}

#[tokio::test]
async fn page_and_limit_below_one_are_refused_by_name() {
    on_leader_and_follower(async |run: Run| {
        let (_, lists) = lists(&run).await;
        for list in &lists {
            let many = "-99999999999999999999999999";
            for query in [
                ("page", "0"),
                ("page", "-1"),
                ("limit", "0"),
                ("limit", "-5"),
                ("page", many),
                ("limit", many),
            ] {
                let answer = list(&[query]).await.invalid();
                assert!(answer.text.contains("must be greater than 0"), "{answer:?}");
            }
            list(&[("limit", "1001")]).await.invalid();
            list(&[("limit", "99999999999999999999999999")]).await.invalid();
            let answer = list(&[("limit", "1000")]).await.expect(200);
            assert_eq!(answer.data()["meta"]["limit"], 1000);
        }
    })
    .await;
}

#[tokio::test]
async fn a_page_or_limit_that_is_no_integer_is_a_parsing_violation() {
    on_leader_and_follower(async |run: Run| {
        let (_, lists) = lists(&run).await;
        for list in &lists {
            for text in ["abc", "", "1.5", "1e3", "0x1", "ten"] {
                list(&[("page", text)]).await.detail(&[(json!(["query", "page"]), "int_parsing")]);
                list(&[("limit", text)]).await.detail(&[(json!(["query", "limit"]), "int_parsing")]);
            }
            let both =
                [(json!(["query", "page"]), "int_parsing"), (json!(["query", "limit"]), "int_parsing")];
            list(&[("page", "a"), ("limit", "b")]).await.detail(&both);
        }
    })
    .await;
}

#[tokio::test]
async fn a_page_past_the_end_is_empty_with_the_same_total() {
    on_leader_and_follower(async |run: Run| {
        let (d, lists) = lists(&run).await;
        d.create("k", &json!({})).await.expect(201);
        for list in &lists {
            for page in ["2", "1000000", "9223372036854775807", "18446744073709551615"] {
                let answer = list(&[("page", page)]).await.expect(200);
                assert_eq!(answer.data()["meta"]["page"].to_string(), page);
                assert_eq!(answer.data()["results"], json!([]), "{answer:?}");
                assert_eq!(answer.total(), 1);
            }
            for page in ["18446744073709551616", "99999999999999999999999"] {
                let answer = list(&[("page", page)]).await.invalid();
                assert!(answer.text.contains("at most 18446744073709551615"), "{answer:?}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn sort_order_and_sort_field_are_checked() {
    on_leader_and_follower(async |run: Run| {
        let (_, lists) = lists(&run).await;
        for list in &lists {
            for order in ["ASC", "Desc", "up", ""] {
                list(&[("sort_order", order)]).await.invalid();
            }
            for order in ["asc", "desc"] {
                list(&[("sort_order", order)]).await.expect(200);
            }
            list(&[("sort_by", "other")]).await.invalid();
        }
        let answer = lists[0](&[("sort_by", "config_key")]).await.invalid();
        for name in ["config_definition_key", "created_at", "modified_at"] {
            assert!(answer.text.contains(name), "{answer:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn search_is_a_substring_of_the_key_whatever_the_case() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        for key in ["Alpha", "alphabet", "BETA", "a.b", "a_b"] {
            d.create(key, &json!({"text": "alpha"})).await.expect(201);
        }
        assert_eq!(d.found(&[("search", "ALPHA")]).await, ["Alpha", "alphabet"]);
        assert_eq!(d.found(&[("search", "bet")]).await, ["BETA", "alphabet"]);
        assert_eq!(d.found(&[("search", "a.b")]).await, ["a.b"]);
        assert_eq!(d.found(&[("search", "_")]).await, ["a_b"]);
        assert_eq!(d.found(&[("search", "%")]).await, [""; 0]);
        assert_eq!(d.found(&[("search", "")]).await.len(), 5);
        let page = d.list(&[("search", "a"), ("limit", "2")]).await;
        assert_eq!((page.config_keys().len(), page.total()), (2, 5));
        let upper = run.key("D").to_uppercase();
        let found = run.node.get(DEFINITIONS).query(&[("search", &*upper)]).await;
        assert_eq!(found.keys_of("config_definition_key"), [d.key]);
    })
    .await;
}

#[tokio::test]
async fn definitions_are_selected_by_key_and_by_key_prefix() {
    on_leader_and_follower(async |run: Run| {
        for name in ["p.a", "p.b", "p.c", "px", "q.a"] {
            run.define_open(name).await;
        }
        let by_key = [("sort_by", "config_definition_key"), ("sort_order", "asc")];
        let list = |query: &[(&str, &str)]| run.node.get(DEFINITIONS).query(&by_key).query(query);
        let keys = |names: &[&str]| names.iter().map(|name| run.key(name)).collect::<Vec<_>>();
        let name = "config_definition_key";
        let (prefix, one, none) = (run.key("p.*"), run.key("q.a"), run.key("p."));
        let found = list(&[("definition", &*prefix), ("definition", &*one)]).await.expect(200);
        assert_eq!((found.keys_of(name), found.total()), (keys(&["p.a", "p.b", "p.c", "q.a"]), 4));
        assert_eq!(list(&[("definition", &*none)]).await.expect(200).total(), 0);
        let searched = list(&[("definition", &*prefix), ("search", "P.B")]).await;
        assert_eq!(searched.keys_of(name), keys(&["p.b"]));
        // The pages that links name are of the same list.
        let first = list(&[("definition", &*prefix), ("limit", "2")]).await.expect(200);
        assert_eq!((first.keys_of(name), first.total()), (keys(&["p.a", "p.b"]), 3));
        let link = first.header("link").to_owned();
        let next = link.strip_prefix('<').and_then(|link| link.split_once('>')).unwrap().0;
        assert_eq!(run.node.get(next).await.expect(200).keys_of(name), keys(&["p.c"]));
        let error = list(&[("definition", "a*b")]).await.expect(422);
        assert_eq!(error.body["errors"][0]["loc"], json!(["query", "definition"]), "{}", error.body);

        for name in ["p.a", "q.a"] {
            run.node.delete(&format!("{DEFINITIONS}{}", run.key(name))).await.expect(200);
        }
        let deleted = run.node.get("/api/v1/deleted_definition/").query(&[("definition", &*prefix)]).await;
        assert_eq!((deleted.keys_of(name), deleted.total()), (keys(&["p.a"]), 1));
    })
    .await;
}

#[tokio::test]
async fn unknown_parameters_of_the_definitions_list_are_ignored() {
    on_leader_and_follower(async |run: Run| {
        let (_, lists) = lists(&run).await;
        let answer = lists[0](&[("color", "red"), ("cursor", "")]).await.expect(200);
        assert_eq!(answer.total(), 1);
    })
    .await;
}

#[tokio::test]
async fn pages_cut_a_long_list_without_gap_or_repetition() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let expected: Vec<String> = (0..75).map(|n| format!("k{n:03}")).collect();
        for key in &expected {
            d.create(key, &json!({})).await.expect(201);
        }
        for (sort_by, order) in
            [("config_key", "asc"), ("created_at", "asc"), ("config_key", "desc"), ("modified_at", "desc")]
        {
            let mut seen = Vec::new();
            for page in 1..=11 {
                let page = page.to_string();
                let query = [("sort_by", sort_by), ("sort_order", order), ("page", &page), ("limit", "7")];
                let answer = d.list(&query).await.expect(200);
                assert_eq!(answer.total(), 75);
                seen.extend(answer.config_keys());
            }
            if order == "desc" {
                seen.reverse();
            }
            assert_eq!(seen, expected, "{sort_by} {order}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_parameter_is_a_filter_from_the_moment_that_an_index_has_its_name() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["n"]), &Value::Null).await;
        d.fill(&[("a", json!({"n": 1, "revision": 7, "fields": "x"})), ("b", json!({"n": 2}))]).await;
        let first = d.get("b").await.tag().trim_matches('"').to_owned();
        let set = async |node: &Client, indexes: &Value| {
            node.put(&d.path(), &json!({"indexes": indexes})).insist().await.expect(200);
        };
        for number in 0..30 {
            let other = &run.others[number % 2];
            set(other, &json!(["n", "revision", "fields"])).await;
            assert_eq!(d.found(&[("revision", "7"), ("fields", "x")]).await, ["a"], "{number}");
            set(other, &json!(["n"])).await;
            assert_eq!(d.found(&[("revision", &first)]).await, ["a", "b"], "{number}");
        }
    })
    .await;
}
