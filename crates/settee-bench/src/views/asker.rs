//! The clients of queries: questions, and the checks of their answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memchr::memmem;
use settee_client::{Answer, JSON, Request};

use crate::api::clients::{generators, unexpected};
use crate::documents::Generator;
use crate::drive::Client;

/// A request, and what its response must contain.
#[derive(Debug, Clone, Default)]
pub(super) struct Question {
    pub(super) target: String,
    /// The body of a POST. None: a GET.
    pub(super) body: Option<String>,
    /// Texts that the response contains.
    pub(super) expected: Vec<String>,
    /// A text, and how often the response contains it.
    pub(super) counted: Option<(&'static str, u64)>,
    /// Number of operations that the response counts for.
    pub(super) operations: u64,
}

impl Question {
    /// A GET that counts as one operation.
    pub(super) fn get(target: String) -> Question {
        Question { target, operations: 1, ..Question::default() }
    }

    /// A POST of JSON that counts as one operation.
    pub(super) fn post(target: String, body: String) -> Question {
        Question { body: Some(body), ..Question::get(target) }
    }

    /// Requires a text in the response.
    pub(super) fn expect(mut self, text: String) -> Question {
        self.expected.push(text);
        self
    }

    /// Requires `count` occurrences of a text in the response.
    pub(super) fn expect_count(self, text: &'static str, count: u64) -> Question {
        Question { counted: Some((text, count)), ..self }
    }

    fn is_answered_by(&self, body: &[u8]) -> bool {
        let has = |text: &String| memmem::find(body, text.as_bytes()).is_some();
        let counts = |(text, count): (&str, u64)| memmem::find_iter(body, text).count() as u64 == count;
        self.expected.iter().all(has) && self.counted.is_none_or(counts)
    }
}

/// Makes the next question of a client.
pub(super) type Ask = Arc<dyn Fn(&mut Generator) -> Question + Send + Sync>;

/// Asks questions, until it is stopped if it can be.
pub(super) struct Asker {
    ask: Ask,
    generator: Generator,
    question: Question,
    /// Set to stop the client after its first question.
    stop: Option<Arc<AtomicBool>>,
    has_asked: bool,
}

impl Asker {
    /// Returns `count` clients with the same kind of questions.
    pub(super) fn group(count: u64, ask: &Ask, stop: Option<&Arc<AtomicBool>>) -> Vec<Asker> {
        let asker = |generator| Asker {
            ask: ask.clone(),
            generator,
            question: Question::default(),
            stop: stop.cloned(),
            has_asked: false,
        };
        generators(count).map(asker).collect()
    }
}

impl Client for Asker {
    fn next(&mut self) -> Option<Request<'_>> {
        if self.has_asked && self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            return None;
        }
        self.has_asked = true;
        self.question = (self.ask)(&mut self.generator);
        let Question { target, body, .. } = &self.question;
        Some(match body {
            Some(body) => Request { method: "POST", target, content: Some((JSON, body.as_bytes())) },
            None => Request::get(target),
        })
    }

    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String> {
        match answer.status {
            200 if self.question.is_answered_by(answer.body) => Ok(self.question.operations),
            _ => Err(format!("{}: {}", self.question.target, unexpected(answer))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_needs_every_expected_text_and_the_right_number_of_rows() {
        let question =
            Question::get("/x".to_owned()).expect("\"id\":\"7\"".to_owned()).expect_count("\"id\":", 2);
        let check = |status, body: &[u8]| {
            let ask: Ask = Arc::new({
                let question = question.clone();
                move |_| question.clone()
            });
            let mut asker = Asker::group(1, &ask, None).remove(0);
            assert_eq!(asker.next().unwrap().target, "/x");
            asker.check(Answer { status, body })
        };
        let right = b"[{\"id\":\"7\"},{\"id\":\"8\"}]";
        assert_eq!(check(200, right), Ok(1));
        assert!(check(500, right).is_err());
        assert!(check(200, b"[{\"id\":\"7\"}]").is_err(), "a row is missing");
        assert!(check(200, b"[{\"id\":\"9\"},{\"id\":\"8\"}]").is_err(), "another row");
    }

    #[test]
    fn a_stopped_client_has_asked_once() {
        let stop = Arc::new(AtomicBool::new(true));
        let ask: Ask = Arc::new(|_| Question::get("/".to_owned()));
        let mut asker = Asker::group(1, &ask, Some(&stop)).remove(0);
        assert!(asker.next().is_some());
        assert!(asker.next().is_none());
    }
}
