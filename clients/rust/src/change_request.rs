//! Making a change request of operations.
//!
//! **Invariant:** it is one write, with an idempotency key: a retry finds the change request of the first attempt.

use http::Method;
use serde::Serialize;
use serde_json::Value;

use crate::{Client, Error, Operation, Request};

impl Request {
    /// Makes a change request of operations that write; nothing is changed before others have approved it and it is
    /// applied. `data` of the response is the change request, with its `change_id`.
    pub fn propose<'a>(
        title: &str,
        description: &str,
        operations: impl IntoIterator<Item = &'a Operation>,
    ) -> Self {
        #[derive(Serialize)]
        struct Body<'a> {
            title: &'a str,
            description: &'a str,
            operations: Vec<&'a Operation>,
        }
        let body = Body { title, description, operations: operations.into_iter().collect() };
        let text = serde_json::to_string(&body).expect("operations are objects of JSON values");
        Self::new(Method::POST, "/api/v1/change_request/").body("application/json", text)
    }
}

impl Client {
    /// Makes a change request of operations, as [`Client::batch`] applies them, and returns it: its `change_id`, and the
    /// whole keys of its definitions.
    ///
    /// # Errors
    /// As [`Client::send`]; then there is no change request, unless the error is [`Error::Unknown`].
    pub async fn propose<'a>(
        &self,
        title: &str,
        description: &str,
        operations: impl IntoIterator<Item = &'a Operation>,
    ) -> Result<Value, Error> {
        self.send(Request::propose(title, description, operations)).await?.data()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_request_has_the_operations_of_a_batch() {
        let (definition, key) = ("d".to_owned(), "k".to_owned());
        let operation = Operation::CreateConfig { definition, key, data: json!({"z": 1, "a": 2}) };
        let request = Request::propose("more", "", [&operation]);
        assert_eq!((&request.method, &*request.path), (&Method::POST, "/api/v1/change_request/"));
        let expected = format!(r#"{{"title":"more","description":"","operations":[{operation}]}}"#);
        assert_eq!(request.body, Some(("application/json", expected.into())));
    }
}
