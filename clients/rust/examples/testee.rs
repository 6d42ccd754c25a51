//! The program that makes the calls of `clients/conformance`.

use std::{
    collections::BTreeMap,
    io::{BufRead, Write},
    time::{Duration, Instant},
};

use concord_client::{
    Cache, CacheOptions, Client, Error, EventKind, Options, Request, Retry, Selection, segment,
};
use http::Method;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(40);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let (sender, mut lines) = tokio::sync::mpsc::channel(1);
    // Reading blocks, and the tasks of a cache go on meanwhile.
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let line: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
            if sender.blocking_send(line).is_err() {
                break;
            }
        }
    });
    let mut steps = None;
    while let Some(mut asked) = lines.recv().await {
        let told = if asked["step"].is_object() {
            let steps: &mut Steps = steps.as_mut().expect("a cache");
            outcome(steps.step(&asked["step"]).await, "not_ready")
        } else {
            let call = asked["call"].take();
            match client(&asked["client"], &call) {
                Ok(client) if call["do"] == "cache" => {
                    steps = Some(Steps { client, definition: text(&call["definition"]), cache: None });
                    json!({ "value": {} })
                }
                Ok(client) => outcome(made(&client, &call).await, "unavailable"),
                Err(error) => outcome(Err(error), "unavailable"),
            }
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{told}").and_then(|()| out.flush()).expect("stdout");
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn seconds(value: &Value) -> Duration {
    Duration::from_secs_f64(value.as_f64().unwrap_or_default())
}

fn client(given: &Value, call: &Value) -> Result<Client, Error> {
    let labels = given["labels"].as_object().into_iter().flatten();
    Client::new(Options {
        urls: given["urls"].as_array().into_iter().flatten().map(text).collect(),
        key: text(&given["key"]),
        timeout: seconds(&given["timeout_s"]),
        reason: call["reason"].as_str().map(str::to_owned),
        environment: given["environment"].as_str().map(str::to_owned),
        reader: given["reader"].as_str().map(str::to_owned),
        labels: labels.map(|(name, value)| (name.clone(), text(value))).collect::<BTreeMap<_, _>>(),
        ..Options::default()
    })
}

/// What a call results in.
async fn made(client: &Client, call: &Value) -> Result<Value, Error> {
    let definition = format!("/api/v1/config_definition/{}", segment(&text(&call["definition"])));
    let key = text(&call["config"]);
    let path = format!("{definition}/config/{}", segment(&key));
    let record = client.config(text(&call["definition"]), key.as_str());
    let keyed = |request: Request| match (call["idempotency_key"].as_str(), call["if_match"].as_u64()) {
        (Some(key), Some(revision)) => request.idempotency_key(key).if_match(revision),
        (Some(key), None) => request.idempotency_key(key),
        (None, Some(revision)) => request.if_match(revision),
        (None, None) => request,
    };
    let request = match text(&call["do"]).as_str() {
        "get" if call["revision"].is_null() => {
            return match record.get::<Value>().await? {
                Some(found) => Ok(json!({ "data": found.value, "revision": found.revision })),
                // This client has no error for it.
                None => Ok(json!({ "missing": true })),
            };
        }
        "get" => {
            let answer = client.send(Request::get(path).query("revision", &call["revision"])).await?;
            return Ok(json!({ "data": answer.data()?["data"], "revision": answer.revision() }));
        }
        "update" => {
            let set = call["set"].as_object().cloned().unwrap_or_default();
            let change = |data: &mut Value| {
                for (name, value) in &set {
                    data[name] = value.clone();
                }
            };
            return Ok(json!({ "revision": record.update(change).await?.revision }));
        }
        "list" => {
            let first = Request::get(format!("{definition}/config/")).query("limit", &call["page_size"]);
            let all = client.pages(first).all().await?;
            return Ok(all.into_iter().map(|mut one| one["config_key"].take()).collect());
        }
        "watch" => return watched(client, call).await,
        "request" => {
            let method = text(&call["method"]).parse().expect("a method");
            let mut request = Request::new(method, text(&call["path"]));
            if !call["body"].is_null() {
                request = request.json(&call["body"]);
            }
            let is_plain = call["idempotency_key"].is_null();
            let request = if is_plain { request.retry(Retry::OtherNode) } else { keyed(request) };
            return client.send(request).await?.data();
        }
        "put" => Request::new(Method::PUT, path).json(&json!({ "data": call["data"] })),
        "create" => Request::new(Method::POST, format!("{definition}/config/"))
            .json(&json!({ "config_key": key, "data": call["data"] })),
        "patch" => {
            Request::new(Method::PATCH, path).body("application/merge-patch+json", call["patch"].to_string())
        }
        "delete" => {
            client.send(keyed(Request::new(Method::DELETE, path))).await?;
            return Ok(json!({}));
        }
        _ => Request::new(Method::POST, "/api/v1/batch").json(&json!({ "operations": call["operations"] })),
    };
    Ok(json!({ "revision": client.send(keyed(request)).await?.revision() }))
}

async fn watched(client: &Client, call: &Value) -> Result<Value, Error> {
    let request = Request::get("/api/v1/watch").query("definition", text(&call["definition"]));
    let mut watch = client.watch(request.query("from", &call["from"]));
    let (take, mut found) = (call["take"].as_u64().unwrap_or_default(), Vec::new());
    while (found.len() as u64) < take {
        let event = watch.next().await?;
        if event.kind != EventKind::Change {
            continue;
        }
        for change in event.data["changes"].as_array().into_iter().flatten() {
            let (kind, key) = (&change["type"], &change["config_key"]);
            found.push(
                json!({ "revision": event.revision, "type": kind, "config": key, "data": change["data"] }),
            );
        }
    }
    Ok(found.into())
}

/// A cache and its steps.
struct Steps {
    client: Client,
    definition: String,
    cache: Option<Cache>,
}

impl Steps {
    async fn step(&mut self, step: &Value) -> Result<Value, Error> {
        match text(&step["do"]).as_str() {
            "start" => {
                let mut options = CacheOptions::new(vec![Selection::definition(&self.definition)]);
                options.confirm_every = Duration::from_secs(1);
                options.fresh_for = Duration::from_secs(3);
                options.file = step["file"].as_str().map(Into::into);
                let cache = self.client.cache(options)?;
                let ready = cache.ready(seconds(&step["start_timeout_s"])).await;
                self.cache = Some(cache);
                ready.map(|_| json!({}))
            }
            "stop" => {
                if let Some(cache) = self.cache.take() {
                    // A cache that has nothing has nothing to save.
                    cache.save().await.ok();
                }
                Ok(json!({}))
            }
            what => {
                let begun = Instant::now();
                loop {
                    let found = self.get(&text(&step["config"]))?;
                    let mut names = ["data", "is_fresh", "missing"].into_iter();
                    let is_there =
                        names.all(|name| step[name].is_null() || is_same(&step[name], &found[name]));
                    if what == "get" || is_there || begun.elapsed() > PATIENCE {
                        return Ok(found);
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    fn get(&self, key: &str) -> Result<Value, Error> {
        let cache = self.cache.as_ref().expect("a cache that was started");
        let Some(read) = cache.get(&self.definition, key)? else { return Ok(json!({ "missing": true })) };
        let is_of_file = read.source.origin == concord_client::Origin::File;
        Ok(json!({
            "data": read.config.data,
            "revision": read.config.revision,
            "is_fresh": read.source.is_fresh(),
            "source": is_of_file.then_some("file"),
        }))
    }
}

/// Whether two values are equal; numbers are as the cases write them.
fn is_same(expected: &Value, found: &Value) -> bool {
    let (expected, found) = (expected.to_string(), found.to_string());
    expected == found
}

fn outcome(result: Result<Value, Error>, unavailable: &str) -> Value {
    let error = match result {
        Ok(value) => return json!({ "value": value }),
        Err(error) => error,
    };
    let told = match &error {
        Error::Usage(_) => json!({ "kind": "invalid" }),
        Error::Unavailable(_) => json!({ "kind": unavailable }),
        Error::Unknown { idempotency_key, .. } => {
            json!({ "kind": "unknown", "idempotency_key": idempotency_key })
        }
        Error::Protocol(_) => json!({ "kind": "protocol" }),
        Error::Refused(refusal) => json!({
            "kind": "rejected",
            "status": refusal.status.as_u16(),
            "code": error.code(),
            "paths": refusal.items.iter().filter(|item| !item.loc.is_empty()).map(|item| pointer(&item.loc)).collect::<Vec<_>>(),
            "current_revision": refusal.current_revision,
        }),
    };
    json!({ "error": told })
}

fn pointer(loc: &[Value]) -> String {
    let part = |part: &Value| part.as_str().map_or_else(|| part.to_string(), str::to_owned);
    loc.iter().map(|each| format!("/{}", part(each).replace('~', "~0").replace('/', "~1"))).collect()
}
