//! The mailing list test of 2011: a view with keys of a list, a sender, a day and a time, and arrays of objects as
//! values; full reads, ranges, groups, and an update of one message in a hundred.

use std::sync::Arc;
use std::time::Instant;

use serde::Deserialize;
use settee_client::{BulkRow, encode_segment, parse};

use super::archive::{Archive, EDITED_EACH, View};
use super::asker::{Ask, Question};
use super::bench::{Bench, RANGE_BESIDE_P99_MS_MAX, RANGE_P50_MS_MAX, judge_latency, row};
use crate::error::{Error, Result};
use crate::mail::Message;
use crate::report::{Row, figure};
use crate::rounds::Window;
use crate::stats::{Samples, Stopwatch};

/// Documents per second of the build in 2011: 1,102,400 in 15 min 17 s, with asynchronous writes.
const BUILD_OF_2011: f64 = 1_102_400.0 / (15.0 * 60.0 + 17.0);

/// Aim of a built-in reduce over any range, in milliseconds.
const REDUCE_P99_MS_MAX: f64 = 1.0;

/// Number of edits of a request.
const EDITS_AT_ONCE: usize = 500;

/// Number of clients, besides one, that ask for ranges.
const CLIENT_COUNT: u64 = 10;

impl Bench<'_> {
    pub(super) async fn mailing_list(&mut self, each: &mut (dyn FnMut(Row) + Send)) -> Result<()> {
        let (archive, view) = (self.archive().await?, View::mail());
        let built = self.build_of("mail: build, keys of four parts", &view).await?;
        let ratio = built.rate.map(|rate| rate / BUILD_OF_2011);
        each(built.compare(format!("× the {} of 2011", figure(BUILD_OF_2011)), ratio, None));
        let rows = format!("{}?reduce=false", archive.view(&view));
        each(self.full_read("mail: full read", &rows, archive.count).await?);
        self.mail_ranges(&archive, &view, each).await?;
        self.mail_groups(&archive, &view, each).await?;
        let name = "mail: reduce (_count) over a random range, 1 client";
        let row = self.ask(name, "requests/s", 1, &reduced_ranges(&archive, &view)).await?;
        each(judge_latency(row, None, Some(REDUCE_P99_MS_MAX)));
        each(self.mail_update(&archive, &view).await?);
        Ok(())
    }

    async fn mail_ranges(
        &mut self,
        archive: &Arc<Archive>,
        view: &View,
        each: &mut (dyn FnMut(Row) + Send),
    ) -> Result<()> {
        let ask = ranges(archive, view, 10);
        for clients in [1, CLIENT_COUNT] {
            let name = format!("mail: range of 10 rows, {}", counted(clients));
            let row = self.ask(&name, "requests/s", clients, &ask).await?;
            each(judge_latency(row, (clients == 1).then_some(RANGE_P50_MS_MAX), None));
        }
        for clients in [1, CLIENT_COUNT] {
            let name = format!("mail: range of 10 rows, {}, while an index is built", counted(clients));
            let other = View::mail_beside(&format!("mail-{clients}"));
            let row = self.ask_beside_build(&name, clients, &ask, &other).await?;
            each(judge_latency(row, None, (clients == 1).then_some(RANGE_BESIDE_P99_MS_MAX)));
        }
        Ok(())
    }

    async fn mail_groups(
        &mut self,
        archive: &Archive,
        view: &View,
        each: &mut (dyn FnMut(Row) + Send),
    ) -> Result<()> {
        for (name, query, groups) in [
            ("mail: reduce by list, group_level=1", "?group_level=1", archive.group_count(1)),
            ("mail: reduce by list and sender, group_level=2", "?group_level=2", archive.group_count(2)),
            ("mail: reduce of all rows", "", 1),
        ] {
            let target = format!("{}{query}", archive.view(view));
            let counted = self.sum_of_values(&target).await?;
            if counted != (groups, archive.count) {
                let reason = format!("{counted:?} groups and rows of {groups} and {}", archive.count);
                return Err(Error::wrong(name, reason));
            }
            let ask: Ask = Arc::new(move |_| Question::get(target.clone()).expect_count("\"key\":", groups));
            each(self.ask(name, "requests/s", 1, &ask).await?.compare("groups", Some(groups as f64), None));
        }
        Ok(())
    }

    /// Number of rows of a reduce, and the sum of their values.
    async fn sum_of_values(&mut self, target: &str) -> Result<(u64, u64)> {
        #[derive(Deserialize)]
        struct Reduced {
            rows: Vec<Group>,
        }
        #[derive(Deserialize)]
        struct Group {
            value: u64,
        }
        let reply = self.couch.call("GET", target, None).await?;
        let Reduced { rows } = parse(target, &reply.body)?;
        Ok((rows.len() as u64, rows.iter().map(|group| group.value).sum()))
    }

    /// Edits one message in a hundred, which moves its row, and queries the last of the new rows.
    async fn mail_update(&mut self, archive: &Archive, view: &View) -> Result<Row> {
        const NAME: &str = "mail: update of 1 %, the first query after it";
        let edited: Vec<Message> = (0..archive.count)
            .step_by(EDITED_EACH as usize)
            .map(|number| archive.message(number).edited())
            .collect();
        let mut bodies = Vec::new();
        for messages in edited.chunks(EDITS_AT_ONCE) {
            bodies.push((self.edits(archive, messages).await?, messages.len()));
        }
        self.settle().await;
        let (begun, bulk) = (Instant::now(), self.bulk_target(&archive.path));
        for (body, count) in &bodies {
            let reply = self.couch.call("POST", &bulk, Some(body)).await?;
            let stored: Vec<BulkRow> = parse(&bulk, &reply.body)?;
            if stored.iter().filter(|row| row.rev.is_some()).count() != *count {
                return Err(Error::wrong(NAME, "an edit was refused"));
            }
        }
        let last = edited[edited.len() - 1];
        let target = format!("{}?reduce=false&key={}", archive.view(view), encode_segment(&last.key()));
        let stopwatch = Stopwatch::start(self.target.pid);
        let reply = self.couch.call("GET", &target, None).await?;
        let elapsed = stopwatch.read();
        let in_all = begun.elapsed().as_secs_f64();
        let text = String::from_utf8_lossy(&reply.body);
        if !text.contains(&format!("\"total_rows\":{},", archive.count)) || !text.contains(&last.id()) {
            return Err(Error::wrong(NAME, format!("the query shows {text}")));
        }
        self.archive_was_edited();
        let seconds = elapsed.wall.as_secs_f64();
        let window = Window::new(edited.len() as u64, Samples::default(), elapsed);
        let row = row(NAME, "docs/s", window).compare("s until the query shows it", Some(seconds), None);
        Ok(row.compare("s with the writes", Some(in_all), None))
    }

    /// The `_bulk_docs` body of edits of messages.
    async fn edits(&mut self, archive: &Archive, messages: &[Message]) -> Result<Vec<u8>> {
        #[derive(Deserialize)]
        struct Listed {
            rows: Vec<Current>,
        }
        #[derive(Deserialize)]
        struct Current {
            value: Revision,
        }
        #[derive(Deserialize)]
        struct Revision {
            rev: String,
        }
        let target = format!("{}/_all_docs", archive.path);
        let ids: Vec<String> = messages.iter().map(Message::id).collect();
        let request = serde_json::json!({ "keys": ids }).to_string();
        let reply = self.couch.call("POST", &target, Some(request.as_bytes())).await?;
        let Listed { rows } = parse(&target, &reply.body)?;
        let mut body = b"{\"docs\":[".to_vec();
        for (index, (message, current)) in messages.iter().zip(&rows).enumerate() {
            if index > 0 {
                body.push(b',');
            }
            message.write(Some(&current.value.rev), &mut body);
        }
        body.extend_from_slice(b"]}");
        Ok(body)
    }
}

/// A number of clients in words.
fn counted(clients: u64) -> String {
    format!("{clients} client{}", if clients == 1 { "" } else { "s" })
}

/// Ranges of `rows` rows from the keys of random messages.
fn ranges(archive: &Arc<Archive>, view: &View, rows: u64) -> Ask {
    let (archive, path) = (archive.clone(), archive.view(view));
    Arc::new(move |generator| {
        let message = archive.message_before(rows, generator);
        let key = encode_segment(&message.key());
        Question::get(format!("{path}?reduce=false&limit={rows}&startkey={key}"))
            .expect(format!("\"id\":\"{}\"", message.id()))
            .expect(format!("\"total_rows\":{},", archive.count))
            .expect_count("\"id\":\"", rows)
    })
}

/// Reduces of random ranges.
fn reduced_ranges(archive: &Arc<Archive>, view: &View) -> Ask {
    let (archive, path) = (archive.clone(), archive.view(view));
    Arc::new(move |generator| {
        let (range, rows) = archive.range(generator);
        Question::get(format!("{path}?{range}")).expect(format!("\"key\":null,\"value\":{rows}}}"))
    })
}
