//! Server-sent events, as a watch sends them.

use serde_json::Value;

/// One server-sent event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) id: Option<u64>,
    pub(crate) data: Value,
}

/// Takes the next block off what has arrived; none while it is not whole. The block is no event when it is the time
/// after which to reconnect.
pub(crate) fn next(arrived: &mut Vec<u8>) -> Option<Option<Event>> {
    let end = arrived.windows(2).position(|two| two == b"\n\n")?;
    let block: Vec<u8> = arrived.drain(..end + 2).collect();
    Some(event(&String::from_utf8(block).expect("a stream of events is UTF-8")))
}

fn event(block: &str) -> Option<Event> {
    let mut event = Event { name: "message".to_owned(), id: None, data: Value::Null };
    let mut data = None;
    for line in block.lines() {
        match line.split_once(": ") {
            Some(("event", name)) => name.clone_into(&mut event.name),
            Some(("id", id)) => event.id = Some(id.parse().expect("an id is a revision")),
            Some(("data", text)) => assert!(data.replace(text).is_none(), "data is one line: {block}"),
            Some(("retry", _)) | None => {}
            Some(_) => panic!("an unknown field: {block}"),
        }
    }
    event.data = serde_json::from_str(data?).expect("data is JSON");
    Some(event)
}
