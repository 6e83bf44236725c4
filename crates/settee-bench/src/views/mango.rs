//! Searches: on an index of the sender and the day, on that index alone, and without an index.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use settee_client::parse;

use super::archive::Archive;
use super::asker::{Ask, Question};
use super::bench::{Bench, build_row, judge_latency};
use crate::error::{Error, Result};
use crate::mail::{Message, sender};
use crate::report::{Bound, Row};
use crate::rounds::Window;
use crate::stats::{Samples, Stopwatch};

/// Name of the index and of its design document.
const INDEX: &str = "by-sender";

/// Aims: largest median latency in milliseconds of a search on an index, and smallest number of documents per
/// second that a search without one examines.
const INDEXED_P50_MS_MAX: f64 = 0.3;
const SCANNED_RATE_MIN: f64 = 500_000.0;

/// What a search has examined.
#[derive(Debug, Deserialize)]
struct Examined {
    total_docs_examined: u64,
}

impl Bench<'_> {
    pub(super) async fn mango(&mut self, each: &mut (dyn FnMut(Row) + Send)) -> Result<()> {
        let archive = self.archive().await?;
        each(self.index_build(&archive).await?);
        let find = format!("{}/_find", archive.path);
        let name = "_find on an index, 1 client";
        let row = self.ask(name, "requests/s", 1, &searches(&archive, by_sender)).await?;
        each(judge_latency(row, Some(INDEXED_P50_MS_MAX), None));

        let one = archive.message(archive.count / 2);
        let examined = self.examined(&find, covered(&one)).await?.total_docs_examined;
        let row = self
            .ask("_find covered by an index, 1 client", "requests/s", 1, &searches(&archive, covered))
            .await?;
        each(row.compare("documents examined", Some(examined as f64), None));

        let name = "_find without an index, 1 client";
        let examined = self.examined(&find, by_serial(&one)).await?.total_docs_examined;
        if examined < archive.count {
            return Err(Error::wrong(
                name,
                format!("{examined} documents were examined of {}", archive.count),
            ));
        }
        let row = self.ask(name, "docs/s", 1, &searches(&archive, by_serial)).await?;
        let rate = row.rate;
        let row = row.compare("docs/s examined", rate, Bound::AtLeast(SCANNED_RATE_MIN));
        each(row.compare("documents examined by a search", Some(examined as f64), None));
        Ok(())
    }

    /// Creates the index, and measures the build that its first search causes. The search must use it.
    async fn index_build(&mut self, archive: &Archive) -> Result<Row> {
        const NAME: &str = "_index: build, two members, the first search";
        self.settle().await;
        let definition = json!({
            "index": { "fields": ["from", "date.day"] }, "ddoc": INDEX, "name": INDEX, "type": "json",
        });
        let target = format!("{}/_index", archive.path);
        self.couch.call("POST", &target, Some(definition.to_string().as_bytes())).await?;
        let (find, message) = (format!("{}/_find", archive.path), archive.message(0));
        let search = by_sender(&message).to_string();
        let stopwatch = Stopwatch::start(self.target.pid);
        let reply = self.couch.call("POST", &find, Some(search.as_bytes())).await?;
        let window = Window::new(archive.count, Samples::default(), stopwatch.read());
        if !String::from_utf8_lossy(&reply.body).contains(&message.id()) {
            return Err(Error::wrong(NAME, "the search doesn't find its document"));
        }
        let target = format!("{}/_explain", archive.path);
        let reply = self.couch.call("POST", &target, Some(search.as_bytes())).await?;
        let explained: Value = parse(&target, &reply.body)?;
        match explained["index"]["name"] == INDEX {
            true => Ok(build_row(NAME, window)),
            false => Err(Error::wrong(NAME, format!("searches use the index {}", explained["index"]))),
        }
    }

    /// What a search examines.
    async fn examined(&mut self, target: &str, mut search: Value) -> Result<Examined> {
        #[derive(Deserialize)]
        struct Found {
            execution_stats: Examined,
        }
        search["execution_stats"] = true.into();
        let reply = self.couch.call("POST", target, Some(search.to_string().as_bytes())).await?;
        Ok(parse::<Found>(target, &reply.body)?.execution_stats)
    }
}

/// The search for the messages of a sender and a day.
fn by_sender(message: &Message) -> Value {
    json!({ "selector": { "from": sender(message.sender), "date.day": message.day } })
}

/// The same search for members that the index has.
fn covered(message: &Message) -> Value {
    let mut search = by_sender(message);
    search["fields"] = json!(["_id", "from", "date.day"]);
    search
}

/// The search for a message by a member that no index has. It finds one document.
fn by_serial(message: &Message) -> Value {
    json!({ "selector": { "serial": message.serial } })
}

/// Searches for random messages. One without an index counts for as many operations as there are messages.
fn searches(archive: &Arc<Archive>, search: fn(&Message) -> Value) -> Ask {
    let (archive, target) = (archive.clone(), format!("{}/_find", archive.path));
    Arc::new(move |generator| {
        let message = archive.message(generator.below(archive.count));
        let search = search(&message);
        let is_scan = search["selector"].get("serial").is_some();
        let question = Question::post(target.clone(), search.to_string())
            .expect(format!("\"_id\":\"{}\"", message.id()));
        match is_scan {
            true => Question { operations: archive.count, ..question.expect_count("\"_id\":\"", 1) },
            false => question,
        }
    })
}
